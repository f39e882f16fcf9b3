//! What a client asks, understood by the server.

use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::limits::{MAX_FDS, MAX_TRANSFER};
use crate::version::Version;
use crate::wire::{
    DeviceInfo, DmaAccess, DmaMap, DmaUnmap, IrqInfo, IrqSet, RegionAccess, RegionInfo, command, dma_flags,
    irq_set_flags, unmap_flags,
};

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRefusal {
    /// What the reply says.
    pub errno: Errno,
    /// For the log.
    pub why: &'static str,
}

impl RequestRefusal {
    /// With both.
    pub const fn new(errno: Errno, why: &'static str) -> Self {
        Self { errno, why }
    }
}

const fn invalid(why: &'static str) -> RequestRefusal {
    RequestRefusal::new(Errno::INVAL, why)
}

/// What is done with interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Held back.
    Mask,
    /// No longer.
    Unmask,
    /// Signalled, or, with descriptors, given what to signal.
    Trigger,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqSource<'a> {
    /// All named.
    All,
    /// The interrupts whose byte is not zero.
    Chosen(&'a [u8]),
    /// All named, by the descriptors that came along: one for each, or none at all to take away what they have.
    Eventfds,
}

/// Set IRQs, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs<'a> {
    /// Which type.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// Vectors; none, with [`IrqSource::All`] and [`IrqAction::Trigger`], switches the type off.
    pub count: u32,
    /// What is done.
    pub action: IrqAction,
    /// To which.
    pub source: IrqSource<'a>,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first.
    Version(Version),
    /// Memory for DMA.
    Map(DmaMap),
    /// No longer; `None` for all there is.
    Unmap(Option<DmaUnmap>),
    /// What the device is.
    DeviceInfo,
    /// What a region is, and how many bytes the answer may have.
    RegionInfo {
        /// Which.
        index: u32,
        /// From the beginning of [`RegionInfo`] on.
        argsz: u32,
    },
    /// What an interrupt type is.
    IrqInfo {
        /// Which.
        index: u32,
    },
    /// Interrupts.
    SetIrqs(SetIrqs<'a>),
    /// A load.
    Read(RegionAccess),
    /// A store.
    Write(RegionAccess, &'a [u8]),
    /// A function reset.
    Reset,
}

/// A request of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaRequest<'a> {
    /// What lies there.
    Read(DmaAccess),
    /// Put this there.
    Write(DmaAccess, &'a [u8]),
}

impl<'a> DmaRequest<'a> {
    /// As [`Request::parse`], of what a server may ask of a client. Whether the memory exists is for whoever has it to say.
    pub fn parse(command: u16, payload: &'a [u8], fds: usize) -> Result<Self, RequestRefusal> {
        if !matches!(command, command::DMA_READ | command::DMA_WRITE) {
            return Err(RequestRefusal::new(Errno::OPNOTSUPP, "a command that a client does not take"));
        }
        let (access, data) =
            DmaAccess::read_from_prefix(payload).map_err(|_| invalid("a message that is too short"))?;
        if fds > 0 || access.count == 0 || access.addr.checked_add(access.count).is_none() {
            return Err(invalid("memory that cannot be"));
        }
        if access.count > MAX_TRANSFER as u64 {
            return Err(RequestRefusal::new(Errno::TOOBIG, "an access that is too long"));
        }
        match command {
            command::DMA_READ => Ok(Self::Read(access)),
            _ if data.len() as u64 == access.count => Ok(Self::Write(access, data)),
            _ => Err(invalid("more or less data than announced")),
        }
    }
}

impl<'a> Request<'a> {
    /// Takes a command's payload apart; `fds` came with it. Addresses do not overflow and lengths are those announced; whether
    /// regions, vectors and mappings exist is for whoever has them to say.
    pub fn parse(command: u16, payload: &'a [u8], fds: usize) -> Result<Self, RequestRefusal> {
        // SPDK's client sends the file of a mapping again when it ends it; nobody needs it.
        let takes_fds = matches!(command, command::DMA_MAP | command::DMA_UNMAP | command::DEVICE_SET_IRQS);
        if fds > MAX_FDS || fds > 0 && !takes_fds {
            return Err(invalid("file descriptors that the command does not take"));
        }
        match command {
            command::VERSION => Version::decode(payload).map(Self::Version).map_err(invalid),
            command::DMA_MAP => Self::map(payload, fds),
            command::DMA_UNMAP => Self::unmap(payload, fds),
            command::DEVICE_GET_INFO => head::<DeviceInfo>(payload).map(|_| Self::DeviceInfo),
            // Some clients send as much as they want to get.
            command::DEVICE_GET_REGION_INFO => {
                let info = head::<RegionInfo>(payload)?;
                if (info.argsz as usize) < size_of::<RegionInfo>() {
                    return Err(invalid("a region's description in less than it takes"));
                }
                Ok(Self::RegionInfo { index: info.index, argsz: info.argsz })
            }
            command::DEVICE_GET_IRQ_INFO => Ok(Self::IrqInfo { index: head::<IrqInfo>(payload)?.index }),
            command::DEVICE_SET_IRQS => Self::set_irqs(payload, fds),
            command::REGION_READ => Ok(Self::Read(access(payload)?.0)),
            command::REGION_WRITE => {
                let (access, data) = access(payload)?;
                let data = data.get(..access.count as usize).ok_or(invalid("less data than announced"))?;
                Ok(Self::Write(access, data))
            }
            command::DEVICE_RESET => Ok(Self::Reset),
            command::DIRTY_PAGES | command::DEVICE_FEATURE | 17 | 18 => {
                Err(RequestRefusal::new(Errno::OPNOTSUPP, "migration is not supported"))
            }
            command::DEVICE_GET_REGION_IO_FDS | command::REGION_WRITE_MULTI => {
                Err(RequestRefusal::new(Errno::OPNOTSUPP, "a command that was not offered"))
            }
            _ => Err(RequestRefusal::new(Errno::OPNOTSUPP, "an unknown command")),
        }
    }

    fn map(payload: &[u8], fds: usize) -> Result<Self, RequestRefusal> {
        let map = head::<DmaMap>(payload)?;
        if map.size == 0 || !(map.addr | map.size).is_multiple_of(4096) || map.addr.checked_add(map.size).is_none() {
            return Err(invalid("a mapping of no whole pages, or past the end of all addresses"));
        }
        if fds > 1 || fds == 1 && (map.offset % 4096 != 0 || map.offset.checked_add(map.size).is_none()) {
            return Err(invalid("a mapping of several files, or of no whole pages of one"));
        }
        if map.flags & (dma_flags::READ | dma_flags::WRITE) == 0 {
            return Err(invalid("a mapping that may neither be read nor written"));
        }
        Ok(Self::Map(map))
    }

    fn unmap(payload: &[u8], fds: usize) -> Result<Self, RequestRefusal> {
        let unmap = head::<DmaUnmap>(payload)?;
        if fds > 1 {
            return Err(invalid("several files with the end of a mapping"));
        }
        if unmap.flags & unmap_flags::GET_DIRTY_BITMAP != 0 {
            return Err(RequestRefusal::new(Errno::OPNOTSUPP, "dirty pages are not tracked"));
        }
        if unmap.flags & unmap_flags::ALL != 0 {
            // QEMU names a range as well, the lower or the upper half of all there is.
            return Ok(Self::Unmap(None));
        }
        if unmap.size == 0 || unmap.addr.checked_add(unmap.size).is_none() {
            return Err(invalid("an empty mapping, or one past the end of all addresses"));
        }
        Ok(Self::Unmap(Some(unmap)))
    }

    fn set_irqs(payload: &'a [u8], fds: usize) -> Result<Self, RequestRefusal> {
        use irq_set_flags::{ACTION_MASK, ACTION_TRIGGER, ACTION_UNMASK, DATA_BOOL, DATA_EVENTFD, DATA_NONE};
        let (set, data) = IrqSet::read_from_prefix(payload).map_err(|_| invalid("a message that is too short"))?;
        let action = match set.flags & (ACTION_MASK | ACTION_UNMASK | ACTION_TRIGGER) {
            ACTION_MASK => IrqAction::Mask,
            ACTION_UNMASK => IrqAction::Unmask,
            ACTION_TRIGGER => IrqAction::Trigger,
            _ => return Err(invalid("no action, or several, for interrupts")),
        };
        let source = match set.flags & (DATA_NONE | DATA_BOOL | DATA_EVENTFD) {
            DATA_NONE => IrqSource::All,
            DATA_BOOL => IrqSource::Chosen(data.get(..set.count as usize).ok_or(invalid("fewer bytes than vectors"))?),
            DATA_EVENTFD if action == IrqAction::Trigger => IrqSource::Eventfds,
            _ => return Err(invalid("interrupts by what is not supported")),
        };
        if set.start.checked_add(set.count).is_none() {
            return Err(invalid("vectors past the end of all numbers"));
        }
        match source {
            IrqSource::Eventfds if fds != 0 && fds != set.count as usize => {
                Err(invalid("another number of descriptors than of vectors"))
            }
            IrqSource::All | IrqSource::Chosen(_) if fds != 0 => Err(invalid("descriptors that belong to nothing")),
            _ => Ok(Self::SetIrqs(SetIrqs { index: set.index, start: set.start, count: set.count, action, source })),
        }
    }
}

fn head<T: FromBytes>(payload: &[u8]) -> Result<T, RequestRefusal> {
    T::read_from_prefix(payload).map(|(head, _)| head).map_err(|_| invalid("a message that is too short"))
}

fn access(payload: &[u8]) -> Result<(RegionAccess, &[u8]), RequestRefusal> {
    let (access, data) = RegionAccess::read_from_prefix(payload).map_err(|_| invalid("a message that is too short"))?;
    if access.count as usize > MAX_TRANSFER || access.offset.checked_add(access.count.into()).is_none() {
        return Err(invalid("an access that is too long"));
    }
    Ok((access, data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use zerocopy::IntoBytes;

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_understood_is_bounded(command in 0u16..20, payload in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..80), fds in 0usize..4) {
            match DmaRequest::parse(command, &payload, fds) {
                Ok(DmaRequest::Read(access)) => prop_assert!(access.addr.checked_add(access.count).is_some()),
                Ok(DmaRequest::Write(access, data)) => prop_assert_eq!(access.count, data.len() as u64),
                Err(_) => {}
            }
            match Request::parse(command, &payload, fds) {
                Ok(Request::Map(map)) => prop_assert!(map.addr.checked_add(map.size).is_some() && map.size >= 4096 && fds <= 1),
                Ok(Request::Unmap(Some(unmap))) => prop_assert!(unmap.addr.checked_add(unmap.size).is_some()),
                Ok(Request::Write(access, data)) => prop_assert_eq!(access.count as usize, data.len()),
                Ok(Request::Read(access)) => prop_assert!(access.count as usize <= MAX_TRANSFER),
                Ok(Request::SetIrqs(set)) => {
                    prop_assert!(set.start.checked_add(set.count).is_some());
                    if let IrqSource::Chosen(bytes) = set.source {
                        prop_assert_eq!(bytes.len(), set.count as usize);
                    }
                }
                _ => {}
            }
        }
    }

    #[test]
    fn lies_are_refused() {
        let map = DmaMap { argsz: 32, flags: 3, offset: 0, addr: 0x1000, size: 0x1000 };
        let parse = |map: &DmaMap, fds| Request::parse(command::DMA_MAP, map.as_bytes(), fds).map(|_| ());
        assert_eq!(Request::parse(command::DMA_MAP, map.as_bytes(), 1), Ok(Request::Map(map)));
        for (wrong, fds) in [
            (DmaMap { size: 0, ..map }, 1),
            (DmaMap { size: 1, ..map }, 1),
            (DmaMap { addr: !0xfff, ..map }, 1),
            (DmaMap { offset: !0xfff, ..map }, 1),
            (DmaMap { offset: 5, ..map }, 1),
            (DmaMap { flags: 0, ..map }, 1),
            (map, 2),
        ] {
            assert_eq!(parse(&wrong, fds).unwrap_err().errno, Errno::INVAL, "{wrong:?}");
        }
        let write = RegionAccess { offset: 0, region: 0, count: 9 };
        let bytes = [write.as_bytes(), &[0; 8]].concat();
        assert!(Request::parse(command::REGION_WRITE, &bytes, 0).is_err());
        assert!(Request::parse(command::DEVICE_RESET, &[], 1).is_err());
        assert_eq!(Request::parse(command::DIRTY_PAGES, &[0; 64], 0).unwrap_err().errno, Errno::OPNOTSUPP);
    }
}
