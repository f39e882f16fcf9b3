//! One client, from its first message to its last.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::fstatfs;
use rustix::io::Errno;
use warprow_dma::{DmaMemory, Function, ImportError, MemoryKind};
use warprow_soft_controller::SoftController;
use warprow_vfio_user_proto::limits::{MAX_FDS, MAX_TRANSFER};
use warprow_vfio_user_proto::wire::{
    CAP_SPARSE_MMAP, CapabilityHeader, DeviceInfo, DmaMap, DmaUnmap, IrqInfo, MappableArea, RegionAccess, RegionInfo,
    SparseAreasHeader, command, device_flags, dma_flags, irq, irq_flags, region, region_flags,
};
use warprow_vfio_user_proto::{Channel, ChannelError, Message, PeerCapabilities, Request, RequestRefusal, Version};
use zerocopy::IntoBytes;

use crate::config_space::{ConfigSpace, Effect, SIZE};
use crate::server::Limits;
use crate::vectors::Vectors;
use crate::wire::Wire;

/// How often a session looks whether it shall end.
const GLANCE: Duration = Duration::from_millis(100);
/// Refused requests that are reported, of one client.
const REPORTED: u32 = 16;
/// Bytes of one client's memory that is copied, since no files came with it.
const MOST_COPIED: u64 = 1 << 30;
/// Our version of the protocol.
const MINOR: u16 = 1;
/// Doorbells in BAR0.
const DOORBELLS: u64 = 0x1000;

/// File systems in memory (`linux/magic.h`): a page of another may take for ever to come.
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;

/// How a session ended.
pub(crate) type Ended = String;

/// What one request is answered with.
#[derive(Default)]
struct Answer {
    payload: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl From<&[u8]> for Answer {
    fn from(payload: &[u8]) -> Self {
        Self { payload: payload.to_vec(), fd: None }
    }
}

pub(crate) struct Session<'a> {
    controller: &'a SoftController,
    wire: Arc<Wire>,
    doorbells: DmaMemory,
    config: ConfigSpace,
    vectors: Arc<Vectors>,
    /// The MSI-X table, which a host writes and we need not read: eventfds take its place.
    table: Vec<u8>,
    /// By address; a copy of the client's where no file came along.
    regions: BTreeMap<u64, (u64, DmaMemory)>,
    /// Bytes of copies.
    copied: u64,
    refused: u32,
    limits: Limits,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.controller.abandon();
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(controller: &'a SoftController, channel: Channel, limits: Limits) -> std::io::Result<Self> {
        let doorbells = controller.doorbell_memory();
        let config = ConfigSpace::new(controller, doorbells.len());
        let vectors = Arc::new(Vectors::new(config.vectors));
        let table = vec![0; usize::from(config.vectors) * 16];
        let wire = Arc::new(Wire::new(channel, limits.time)?);
        Ok(Self {
            controller,
            wire,
            doorbells,
            config,
            vectors,
            table,
            regions: BTreeMap::new(),
            copied: 0,
            refused: 0,
            limits,
        })
    }

    /// Serves until the client goes, breaks the protocol, or `stop` is set; `report` is told of requests that are refused.
    pub(crate) fn run(&mut self, stop: &AtomicBool, report: &dyn Fn(u16, &'static str)) -> Ended {
        match self.greet().and_then(|()| self.serve(stop, report)) {
            Ok(why) => why,
            Err(ChannelError::Closed) => "the client has closed the connection".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn greet(&mut self) -> Result<(), ChannelError> {
        let time = self.limits.time;
        let message = self.wire.with(|channel| channel.receive(Instant::now() + time, time))?;
        let version = match Request::parse(message.header.command, &message.payload, message.fds.len()) {
            _ if message.is_reply() => return Err(ChannelError::Malformed("a reply where a version belongs")),
            Ok(Request::Version(version)) if version.major == 0 => version,
            Ok(Request::Version(_)) => {
                self.wire.with(|channel| channel.refuse(&message.header, Errno::PROTONOSUPPORT, time))?;
                return Err(ChannelError::Malformed("a major version that is not 0"));
            }
            Ok(_) => return Err(ChannelError::Malformed("another message where a version belongs")),
            Err(refusal) => return Err(ChannelError::Malformed(refusal.why)),
        };
        let capabilities = PeerCapabilities {
            max_msg_fds: MAX_FDS as u64,
            max_data_xfer_size: MAX_TRANSFER as u64,
            max_dma_maps: Some(self.limits.regions as u64),
        };
        self.wire.set_most(version.capabilities.max_data_xfer_size);
        let ours = Version { major: 0, minor: version.minor.min(MINOR), capabilities };
        self.wire.with(|channel| channel.reply(&message.header, &[&ours.encode()], &[], time))
    }

    fn serve(&mut self, stop: &AtomicBool, report: &dyn Fn(u16, &'static str)) -> Result<Ended, ChannelError> {
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok("the server ends".to_owned());
            }
            if self.regions.values().any(|(_, memory)| memory.is_lost()) {
                return Ok("the client has shortened a file that it gave for DMA".to_owned());
            }
            let Some(message) = self.wire.next(GLANCE)? else { continue };
            if message.is_reply() {
                return Err(ChannelError::Malformed("a reply to nothing"));
            }
            self.answer(message, report)?;
        }
    }

    fn answer(&mut self, message: Message, report: &dyn Fn(u16, &'static str)) -> Result<(), ChannelError> {
        let header = message.header;
        let wanted = message.wants_reply();
        let answer = Request::parse(header.command, &message.payload, message.fds.len())
            .and_then(|request| self.carry_out(request, message.fds));
        match answer {
            Ok(answer) if wanted => {
                let fds: Vec<_> = answer.fd.iter().map(AsFd::as_fd).collect();
                self.wire.with(|channel| channel.reply(&header, &[&answer.payload], &fds, self.limits.time))
            }
            Ok(_) => Ok(()),
            Err(refusal) => {
                if self.refused < REPORTED {
                    report(header.command, refusal.why);
                }
                self.refused = self.refused.saturating_add(1);
                if !wanted {
                    return Ok(());
                }
                self.wire.with(|channel| channel.refuse(&header, refusal.errno, self.limits.time))
            }
        }
    }

    fn carry_out(&mut self, request: Request<'_>, fds: Vec<OwnedFd>) -> Result<Answer, RequestRefusal> {
        match request {
            Request::Version(_) => Err(RequestRefusal::new(Errno::INVAL, "a second version")),
            Request::Map(map) => self.map(&map, fds).map(|()| Answer::default()),
            Request::Unmap(what) => self.unmap(what).map(|()| Answer::default()),
            Request::DeviceInfo => {
                let flags = device_flags::PCI | device_flags::RESET;
                let info = DeviceInfo { argsz: 16, flags, num_regions: region::COUNT, num_irqs: irq::COUNT };
                Ok(info.as_bytes().into())
            }
            Request::RegionInfo { index, argsz } => self.describe(index, argsz),
            // As the kernel answers for functions that signal no errors.
            Request::IrqInfo { index: irq::ERRORS } => {
                Err(RequestRefusal::new(Errno::INVAL, "errors are not signalled"))
            }
            Request::IrqInfo { index } if index < irq::COUNT => {
                let count = if index == irq::MSIX { self.config.vectors.into() } else { 0 };
                let flags = if count != 0 { irq_flags::EVENTFD } else { 0 };
                Ok(IrqInfo { argsz: 16, flags, index, count }.as_bytes().into())
            }
            Request::IrqInfo { .. } => Err(RequestRefusal::new(Errno::INVAL, "an interrupt type that there is not")),
            Request::SetIrqs(set) if set.index == irq::MSIX => {
                if !fds.is_empty() {
                    // Clients that poll need none, and should not pay for them.
                    self.controller.set_interrupts(Some(self.vectors.clone()));
                }
                self.vectors.set(&set, fds).map(|()| Answer::default())
            }
            // Switching off what there is not is fine.
            Request::SetIrqs(set) if set.index < irq::COUNT && set.count == 0 => Ok(Answer::default()),
            Request::SetIrqs(_) => Err(RequestRefusal::new(Errno::INVAL, "interrupts other than MSI-X")),
            Request::Read(access) => {
                let mut payload = access.as_bytes().to_vec();
                payload.extend(self.read(&access)?);
                Ok(Answer { payload, fd: None })
            }
            Request::Write(access, data) => {
                self.write(&access, data)?;
                Ok(access.as_bytes().into())
            }
            Request::Reset => {
                self.reset()?;
                Ok(Answer::default())
            }
        }
    }

    fn map(&mut self, map: &DmaMap, fds: Vec<OwnedFd>) -> Result<(), RequestRefusal> {
        let end = map.addr + map.size;
        if self.regions.range(..end).next_back().is_some_and(|(addr, (size, _))| addr + size > map.addr) {
            return Err(RequestRefusal::new(Errno::EXIST, "a mapping over another"));
        }
        if self.regions.len() >= self.limits.regions {
            return Err(RequestRefusal::new(Errno::NOSPC, "more mappings than were agreed on"));
        }
        let writable = map.flags & dma_flags::WRITE != 0;
        let memory = match fds.into_iter().next() {
            Some(fd) => self.map_file(map, fd, writable)?,
            None => self.map_copy(map, writable)?,
        };
        self.regions.insert(map.addr, (map.size, memory));
        Ok(())
    }

    /// Memory that both have.
    fn map_file(&self, map: &DmaMap, fd: OwnedFd, writable: bool) -> Result<DmaMemory, RequestRefusal> {
        let kind = fstatfs(&fd).map_err(|errno| RequestRefusal::new(errno, "a file that cannot be looked at"))?.f_type;
        if ![TMPFS, HUGETLBFS].contains(&(kind as i64)) {
            return Err(RequestRefusal::new(Errno::INVAL, "memory for DMA that is a file on a disk"));
        }
        let memory = DmaMemory::import(fd, map.offset, map.size, writable).map_err(|error| match error {
            ImportError::System(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
                RequestRefusal::new(errno, "a file that cannot be mapped")
            }
            ImportError::TooShort { .. } => RequestRefusal::new(Errno::INVAL, "a file shorter than its mapping"),
            _ => RequestRefusal::new(Errno::INVAL, "a descriptor that is not a file's, or not whole pages of one"),
        })?;
        if !self.controller.map_at(map.addr, &memory, writable) {
            return Err(RequestRefusal::new(Errno::EXIST, "a mapping over another"));
        }
        Ok(memory)
    }

    /// Memory that is read and written by messages. The copy takes what was touched of it.
    fn map_copy(&mut self, map: &DmaMap, writable: bool) -> Result<DmaMemory, RequestRefusal> {
        let too_much = RequestRefusal::new(Errno::NOSPC, "more memory without files than is copied here");
        let copied = self.copied.checked_add(map.size).filter(|&bytes| bytes <= MOST_COPIED).ok_or(too_much)?;
        let memory =
            usize::try_from(map.size).ok().and_then(|len| DmaMemory::allocate(len, MemoryKind::Anonymous).ok());
        let memory = memory.ok_or(RequestRefusal::new(Errno::NOMEM, "memory for copies"))?;
        if !self.controller.map_remote_at(map.addr, &memory, writable, self.wire.clone()) {
            return Err(RequestRefusal::new(Errno::EXIST, "a mapping over another"));
        }
        self.copied = copied;
        Ok(memory)
    }

    /// Ends mappings, each as a whole; nothing reaches their memory afterwards.
    fn unmap(&mut self, what: Option<DmaUnmap>) -> Result<(), RequestRefusal> {
        let (from, to) = what.map_or((0, u64::MAX), |what| (what.addr, what.addr + what.size));
        let cut = |addr: u64, size: u64| addr < to && addr + size > from && (addr < from || addr + size > to);
        if self.regions.iter().any(|(&addr, &(size, _))| cut(addr, size)) {
            return Err(RequestRefusal::new(Errno::INVAL, "a mapping that would end in part"));
        }
        let named: Vec<u64> = self.regions.range(from..to).map(|(&addr, _)| addr).collect();
        if named.is_empty() && what.is_some() {
            return Err(RequestRefusal::new(Errno::NOENT, "a mapping that there is not"));
        }
        for addr in named {
            if let Some((size, memory)) = self.regions.remove(&addr) {
                if memory.file().is_none() {
                    self.copied = self.copied.saturating_sub(size);
                }
                // It is there: both lists are changed together.
                let _ = self.controller.unmap(addr);
            }
        }
        Ok(())
    }

    fn describe(&self, index: u32, argsz: u32) -> Result<Answer, RequestRefusal> {
        let both = region_flags::READ | region_flags::WRITE;
        let mut info = RegionInfo { argsz: 32, index, ..RegionInfo::default() };
        (info.size, info.flags) = match index {
            region::BAR0 => (self.config.bar0, both),
            region::BAR4 => (self.config.bar4, both),
            region::CONFIG => (SIZE as u64, both),
            _ if index < region::COUNT => (0, 0),
            _ => return Err(RequestRefusal::new(Errno::INVAL, "a region that there is not")),
        };
        let file = self.doorbells.file().and_then(|(fd, offset)| Some((fd, offset.checked_sub(DOORBELLS)?)));
        let Some((fd, offset)) = file.filter(|_| index == region::BAR0) else {
            return Ok(info.as_bytes().into());
        };
        // Doorbells alone can be mapped.
        let area = MappableArea { offset: DOORBELLS, size: self.doorbells.len() as u64 };
        let cap = CapabilityHeader { id: CAP_SPARSE_MMAP, version: 1, next: 0 };
        let list = SparseAreasHeader { nr_areas: 1, reserved: 0 };
        let caps = [cap.as_bytes(), list.as_bytes(), area.as_bytes()].concat();
        info.flags |= region_flags::MMAP | region_flags::CAPS;
        info.offset = offset;
        info.argsz += caps.len() as u32;
        // Also in an answer without them, or QEMU finds it absurd.
        info.cap_offset = 32;
        if argsz < info.argsz {
            return Ok(info.as_bytes().into());
        }
        let fd = fd.try_clone_to_owned().map_err(|_| RequestRefusal::new(Errno::MFILE, "too many open files here"))?;
        Ok(Answer { payload: [info.as_bytes(), &caps].concat(), fd: Some(fd) })
    }

    fn read(&self, access: &RegionAccess) -> Result<Vec<u8>, RequestRefusal> {
        let outside = RequestRefusal::new(Errno::INVAL, "a read outside its region");
        let at = access.offset;
        let len = access.count as usize;
        match access.region {
            region::CONFIG => self.config.read(at, len).map(<[u8]>::to_vec).ok_or(outside),
            region::BAR0 if at.checked_add(len as u64).is_some_and(|end| end <= self.config.bar0) => {
                let mut bytes = Vec::with_capacity(len + 8);
                for word in (at & !3..at + len as u64).step_by(4) {
                    // What lies behind the doorbells is nothing.
                    let value = match self.controller.read_u32(word) {
                        Ok(value) => value,
                        Err(warprow_dma::FunctionError::OutsideBar { .. }) => 0,
                        Err(_) => u32::MAX,
                    };
                    bytes.extend(value.to_le_bytes());
                }
                bytes.drain(..(at & 3) as usize);
                bytes.truncate(len);
                Ok(bytes)
            }
            region::BAR4 => self.msix(at, len).ok_or(outside),
            _ => Err(outside),
        }
    }

    fn msix(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        if at.checked_add(len as u64)? > self.config.bar4 {
            return None;
        }
        let pending = self.vectors.pending();
        let byte = |at: u64| match at.checked_sub(self.config.pending) {
            Some(at) => pending.get(at as usize),
            None => self.table.get(at as usize),
        };
        Some((at..at + len as u64).map(|at| byte(at).copied().unwrap_or(0)).collect())
    }

    fn write(&mut self, access: &RegionAccess, data: &[u8]) -> Result<(), RequestRefusal> {
        let outside = RequestRefusal::new(Errno::INVAL, "a write outside its region");
        let at = access.offset;
        match access.region {
            region::CONFIG => match self.config.write(at, data).ok_or(outside)? {
                Effect::None => Ok(()),
                Effect::Reset => self.reset(),
                // A controller that is gone does nothing any more.
                Effect::BusMaster(on) => {
                    let _ = self.controller.set_bus_master(on);
                    Ok(())
                }
            },
            region::BAR0 => {
                let end = at.checked_add(data.len() as u64).ok_or(outside)?;
                if end > self.config.bar0 || !at.is_multiple_of(4) || ![4, 8].contains(&data.len()) {
                    return Err(RequestRefusal::new(
                        Errno::INVAL,
                        "a register written by other than 4 or 8 aligned bytes",
                    ));
                }
                for (i, word) in data.as_chunks::<4>().0.iter().enumerate() {
                    // As on hardware, stores to what is not there vanish.
                    let _ = self.controller.write_u32(at + i as u64 * 4, u32::from_le_bytes(*word));
                }
                Ok(())
            }
            region::BAR4 => {
                let end = at.checked_add(data.len() as u64).filter(|&end| end <= self.config.bar4).ok_or(outside)?;
                if let Some(table) = self.table.get_mut(at as usize..end as usize) {
                    table.copy_from_slice(data);
                }
                Ok(())
            }
            _ => Err(outside),
        }
    }

    fn reset(&mut self) -> Result<(), RequestRefusal> {
        self.config.reset();
        self.table.fill(0);
        self.vectors.clear();
        self.controller.reset().map_err(|_| RequestRefusal::new(Errno::IO, "the controller is gone"))
    }
}

/// Tells one client that another is served.
pub(crate) fn turn_away(channel: &mut Channel) {
    let time = Duration::from_millis(500);
    if let Ok(message) = channel.receive(Instant::now() + time, time)
        && message.header.command == command::VERSION
    {
        // It will see the end of the connection if not this.
        let _ = channel.refuse(&message.header, Errno::BUSY, time);
    }
}
