use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use warprow_dma::pci::command::{BUS_MASTER, INTERRUPT_DISABLE, MEMORY_SPACE};
use warprow_dma::pci::{COMMAND, PciAccess};
use warprow_dma::{
    AllocateError, DmaMemory, Doorbell, EventfdInterrupt, Function, FunctionError, Interrupt, MemoryKind, PAGE,
    RemoteDoorbell,
};
use warprow_vfio_user_proto::limits::{MAX_FDS, MAX_REGION_INFO, MAX_TRANSFER};
use warprow_vfio_user_proto::wire::{
    DeviceInfo, DmaMap, DmaUnmap, IrqSet, RegionAccess, RegionInfo, command, device_flags, dma_flags, irq,
    irq_set_flags, region,
};
use warprow_vfio_user_proto::{
    PeerCapabilities, RegionDescription, Version, device_info, region_data, region_info, region_written, version_reply,
};
use zerocopy::IntoBytes;

use crate::OpenError;
use crate::arena::Arena;
use crate::connection::{AnswerTimeouts, Connection, connect};
use crate::iova::Iovas;

/// Offsets in configuration space (PCI Local Bus 3.0, 6.2).
const CLASS: u64 = 8;
const BAR0: u64 = 0x10;
const CAPABILITIES: u64 = 0x34;
/// Identifier of the MSI-X capability, and how many there can be.
const MSIX: u8 = 0x11;
const MOST_CAPABILITIES: u32 = 48;
/// Mass storage, non-volatile memory, NVM Express I/O controller.
const NVME: u32 = 0x01_08_02;

/// Doorbells in BAR0 (NVMe Base 2.0, 3.1.3).
const DOORBELLS: u64 = 0x1000;

/// The version of the protocol that is proposed.
const OURS: (u16, u16) = (0, 1);
/// DMA regions of a server that does not say: what SPDK's takes.
const FEW: u64 = 16;
/// With fewer, memory is given to the server in large pieces.
const MANY: u64 = 256;

/// An NVMe controller that another process serves on a UNIX socket.
///
/// Dropping it stops its DMA and closes the connection.
pub struct VfioUserFunction {
    name: String,
    link: Arc<Link>,
    bar0: u64,
    can_reset: bool,
    /// The part of BAR0 that the server shares, and the offset at which it begins.
    shared: Option<(DmaMemory, u64)>,
    most_regions: usize,
    state: Mutex<State>,
    /// Signalled by vector 0, once somebody has asked for it.
    event: OnceLock<Arc<EventfdInterrupt>>,
}

/// The part that doorbells keep.
#[derive(Debug)]
struct Link(Connection, AnswerTimeouts);

/// Memory and addresses.
#[derive(Debug, Default)]
struct State {
    iovas: Iovas,
    arena: Arena,
    /// DMA regions that the server was told of, by address.
    regions: HashMap<u64, DmaMemory>,
    /// Where pieces of the arena begin, by their index.
    slabs: HashMap<usize, u64>,
    /// Memory mapped as part of a piece, by address, and how often.
    parts: HashMap<u64, (DmaMemory, usize)>,
}

impl fmt::Debug for VfioUserFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioUserFunction({})", self.name)
    }
}

impl Link {
    fn load(&self, region: u32, offset: u64, bytes: &mut [u8]) -> Result<(), FunctionError> {
        let what = "reading a register";
        let asked = RegionAccess { offset, region, count: bytes.len() as u32 };
        let answer = self.0.ask(what, command::REGION_READ, &[asked.as_bytes()], &[], self.1.answer)?;
        let data = region_data(&answer.payload, &asked).map_err(|why| self.0.nonsense(what, why))?;
        bytes.copy_from_slice(data);
        Ok(())
    }

    fn store(&self, region: u32, offset: u64, bytes: &[u8]) -> Result<(), FunctionError> {
        let what = "writing a register";
        let asked = RegionAccess { offset, region, count: bytes.len() as u32 };
        // Some registers (CC, the command register) make a server wait for what is under way.
        let answer = self.0.ask(what, command::REGION_WRITE, &[asked.as_bytes(), bytes], &[], self.1.reset)?;
        region_written(&answer.payload, &asked).map_err(|why| self.0.nonsense(what, why))
    }
}

impl RemoteDoorbell for Link {
    fn ring(&self, offset: u64, value: u32) {
        // The connection remembers that it has failed.
        let _ = self.store(region::BAR0, offset, &value.to_le_bytes());
    }
}

impl VfioUserFunction {
    /// Connects to the controller served at `path`. Bus mastering is off when this returns.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>, OpenError> {
        Self::open_with(path, AnswerTimeouts::default())
    }

    /// Opens the function with other limits.
    pub fn open_with(path: impl AsRef<Path>, patience: AnswerTimeouts) -> Result<Arc<Self>, OpenError> {
        let path = path.as_ref();
        let socket = connect(path).map_err(|source| OpenError::Connect { path: path.to_owned(), source })?;
        let name = format!("vfio-user:{}", path.display());
        let connection = Connection::new(name.clone(), socket)
            .map_err(|source| OpenError::Connect { path: path.to_owned(), source })?;
        let function = Self::introduce(name, Link(connection, patience), path)?;
        function.set_up()?;
        let mut class = [0; 4];
        function.link.load(region::CONFIG, CLASS, &mut class)?;
        let class = u32::from_le_bytes(class) >> 8;
        if class != NVME {
            return Err(OpenError::NotNvme { path: path.to_owned(), class });
        }
        function.present()?;
        Ok(Arc::new(function))
    }

    /// Learns what the server is.
    fn introduce(name: String, link: Link, path: &Path) -> Result<Self, OpenError> {
        let place = || path.to_owned();
        let foreign = |what: &str| OpenError::Foreign { path: place(), what: what.to_owned() };
        let capabilities = PeerCapabilities {
            max_msg_fds: MAX_FDS as u64,
            max_data_xfer_size: MAX_TRANSFER as u64,
            max_dma_maps: Some(0xffff),
        };
        let ours = Version { major: OURS.0, minor: OURS.1, capabilities };
        let answer = link
            .0
            .ask("agreeing on a version", command::VERSION, &[&ours.encode()], &[], link.1.answer)
            .map_err(|error| refused_at_the_door(error, place()))?;
        let version = version_reply(&answer.payload, OURS).map_err(foreign)?;
        let most_regions = version.capabilities.max_dma_maps.unwrap_or(FEW).min(1 << 20) as usize;

        let asked = DeviceInfo { argsz: size_of::<DeviceInfo>() as u32, ..DeviceInfo::default() };
        let answer =
            link.0.ask("asking for the device", command::DEVICE_GET_INFO, &[asked.as_bytes()], &[], link.1.answer)?;
        let device = device_info(&answer.payload).map_err(foreign)?;
        let (bar0, fd) = describe(&link, region::BAR0).map_err(|error| in_place(error, path))?;
        if bar0.info.size < DOORBELLS + 8 || bar0.info.size > 1 << 40 {
            return Err(foreign("its BAR0 has no room for an NVMe controller's registers"));
        }
        let holds_doorbells = |offset: u64, size: u64| offset <= DOORBELLS && offset + size > DOORBELLS;
        let area = bar0.areas.iter().find(|area| holds_doorbells(area.offset, area.size));
        let shared = match (area, fd) {
            (Some(area), Some(fd)) => {
                let memory = DmaMemory::import(fd, bar0.info.offset + area.offset, area.size, true)
                    .map_err(|error| foreign(&format!("the doorbells that it shares cannot be mapped: {error}")))?;
                Some((memory, area.offset))
            }
            // Messages do as well.
            _ => None,
        };
        Ok(Self {
            name,
            link: Arc::new(link),
            bar0: bar0.info.size,
            can_reset: device.flags & device_flags::RESET != 0,
            shared,
            most_regions,
            state: Mutex::default(),
            event: OnceLock::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What power-on, resets and other clients leave to be done: an address for BAR0, registers on, interrupts and DMA off.
    fn set_up(&self) -> Result<(), FunctionError> {
        let mut bar = [0; 8];
        self.link.load(region::CONFIG, BAR0, &mut bar)?;
        let wide = bar[0] & 6 == 4;
        let base = u64::from_le_bytes(bar) & if wide { !0xf } else { 0xffff_fff0 };
        if base == 0 {
            // Any will do: nothing else is on this bus. (QEMU's server answers only where BAR0 is.)
            let address = self.bar0.next_power_of_two().max(0x1000_0000);
            let bytes = address.to_le_bytes();
            self.link.store(region::CONFIG, BAR0, if wide { &bytes } else { &bytes[..4] })?;
        }
        self.change_command(MEMORY_SPACE | INTERRUPT_DISABLE, BUS_MASTER)?;
        self.set_msix(false)
    }

    /// Has the server signal the eventfd for vector 0.
    fn arm(&self, event: &EventfdInterrupt) -> Result<(), FunctionError> {
        let vector = |flags| IrqSet { argsz: size_of::<IrqSet>() as u32, flags, index: irq::MSIX, start: 0, count: 1 };
        let what = "turning an interrupt on";
        let time = self.link.1.answer;
        let ask =
            |set: IrqSet, fds: &[_]| self.link.0.ask(what, command::DEVICE_SET_IRQS, &[set.as_bytes()], fds, time);
        ask(vector(irq_set_flags::DATA_EVENTFD | irq_set_flags::ACTION_TRIGGER), &[event.as_fd()])?;
        // A reset masks vectors (PCI Local Bus 3.0, 6.8.2.9), and QEMU's server keeps to that. One that masks none may refuse this.
        match ask(vector(irq_set_flags::DATA_NONE | irq_set_flags::ACTION_UNMASK), &[]) {
            Err(error) if self.link.0.is_broken() => return Err(error),
            _ => {}
        }
        self.set_msix(true)
    }

    /// MSI-X Enable, with Function Mask off (PCI Local Bus 3.0, 6.8.2.3). Some servers (SPDK's) signal nothing without it, and fail with it
    /// where there is no eventfd: also for the next client, whose configuration space is that of the one before.
    fn set_msix(&self, enabled: bool) -> Result<(), FunctionError> {
        let mut at = [0];
        self.link.load(region::CONFIG, CAPABILITIES, &mut at)?;
        // A list that goes in circles ends here too.
        for _ in 0..MOST_CAPABILITIES {
            let place = u64::from(at[0] & !3);
            if place < 0x40 {
                break;
            }
            let mut head = [0; 4];
            self.link.load(region::CONFIG, place, &mut head)?;
            let [id, next, low, high] = head;
            if id == MSIX {
                let was = u16::from_le_bytes([low, high]);
                let control = was & !(3 << 14) | u16::from(enabled) << 15;
                if control == was {
                    return Ok(());
                }
                return self.link.store(region::CONFIG, place + 2, &control.to_le_bytes());
            }
            at = [next];
        }
        Ok(())
    }

    fn map_error(&self, memory: &DmaMemory, why: impl Into<String>) -> FunctionError {
        FunctionError::Map { function: self.name.clone(), len: memory.len(), why: why.into() }
    }

    /// Tells the server of a region.
    fn give(&self, state: &mut State, memory: &DmaMemory) -> Result<u64, FunctionError> {
        if state.regions.len() >= self.most_regions {
            let why = format!(
                "the server takes {} DMA regions, and has them: use memory that this function has allocated",
                self.most_regions
            );
            return Err(self.map_error(memory, why));
        }
        let file = memory.file();
        let fds = file.map(|(fd, _)| fd);
        let offset = file.map_or(0, |(_, offset)| offset);
        let size = memory.len() as u64;
        let addr = state.iovas.allocate(size).ok_or_else(|| {
            self.map_error(memory, "no gap of I/O virtual addresses is large enough: unmap something first")
        })?;
        let flags = dma_flags::READ | dma_flags::WRITE;
        let map = DmaMap { argsz: size_of::<DmaMap>() as u32, flags, offset, addr, size };
        if fds.is_none() {
            self.link.0.reach(addr, memory).map_err(|error| self.link.0.os("answering the server", error))?;
        }
        let told = self.link.0.ask(
            "mapping memory for DMA",
            command::DMA_MAP,
            &[map.as_bytes()],
            fds.as_slice(),
            self.link.1.reset,
        );
        if let Err(error) = told {
            state.iovas.release(addr);
            self.link.0.end_reach(addr);
            return Err(match error {
                FunctionError::Os { ref source, .. } if !self.link.0.is_broken() => {
                    self.map_error(memory, format!("the server refuses it: {source}"))
                }
                error => error,
            });
        }
        state.regions.insert(addr, memory.clone());
        Ok(addr)
    }

    fn uses_arena(&self) -> bool {
        (self.most_regions as u64) < MANY
    }
}

/// A region, and the file that came with its description.
fn describe(link: &Link, index: u32) -> Result<(RegionDescription, Option<OwnedFd>), Described> {
    let mut argsz = size_of::<RegionInfo>() as u32;
    // The first answer says how long the whole is, and the file comes with the second.
    for _ in 0..3 {
        let asked = RegionInfo { argsz, index, ..RegionInfo::default() };
        let what = "asking for a region";
        let answer = link
            .0
            .ask(what, command::DEVICE_GET_REGION_INFO, &[asked.as_bytes()], &[], link.1.answer)
            .map_err(Described::Failed)?;
        let region = region_info(&answer.payload, index, argsz).map_err(Described::Foreign)?;
        match region.needed {
            None => return Ok((region, answer.fds.into_iter().next())),
            Some(needed) if needed > MAX_REGION_INFO => {
                return Err(Described::Foreign("a region that takes pages to describe"));
            }
            Some(needed) => argsz = needed,
        }
    }
    Err(Described::Foreign("a region whose description keeps growing"))
}

enum Described {
    Failed(FunctionError),
    Foreign(&'static str),
}

fn in_place(error: Described, path: &Path) -> OpenError {
    match error {
        Described::Failed(error) => error.into(),
        Described::Foreign(what) => OpenError::Foreign { path: path.to_owned(), what: what.to_owned() },
    }
}

/// The first question tells who answers.
fn refused_at_the_door(error: FunctionError, path: PathBuf) -> OpenError {
    match error {
        FunctionError::Gone { .. } => {
            OpenError::Foreign { path, what: "it closed the connection when asked for its version".to_owned() }
        }
        FunctionError::Os { source, .. } if Errno::from_io_error(&source) == Some(Errno::BUSY) => {
            OpenError::Busy { path }
        }
        FunctionError::Os { source, .. } => OpenError::Foreign { path, what: source.to_string() },
        error => error.into(),
    }
}

impl Function for VfioUserFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.load_u32(offset)
    }

    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.load_u64(offset)
    }

    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.store_u32(offset, value)
    }

    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.store_u64(offset, value)
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.check("a doorbell", offset, 4)?;
        let shared = self.shared.as_ref().and_then(|(memory, begins)| {
            Doorbell::memory(memory.clone(), usize::try_from(offset.checked_sub(*begins)?).ok()?, None)
        });
        Ok(shared.unwrap_or_else(|| Doorbell::carried(self.link.clone(), offset)))
    }

    fn doorbell_memory(&self) -> Option<DmaMemory> {
        let (memory, begins) = self.shared.as_ref()?;
        let before = usize::try_from(DOORBELLS - begins).ok()?;
        Some(if before == 0 { memory.clone() } else { memory.part(before, memory.len().checked_sub(before)?) })
    }

    fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
        if self.uses_arena() { self.state().arena.allocate(len) } else { DmaMemory::allocate(len, MemoryKind::Memfd) }
    }

    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        if !(memory.as_ptr().addr() | memory.len()).is_multiple_of(PAGE) {
            return Err(self.map_error(memory, "it is not made of whole pages"));
        }
        let state = &mut *self.state();
        let Some((slab, whole, offset)) = state.arena.find(memory) else { return self.give(state, memory) };
        let base = match state.slabs.get(&slab) {
            Some(&base) => base,
            None => {
                let whole = whole.clone();
                let base = self.give(state, &whole)?;
                state.slabs.insert(slab, base);
                base
            }
        };
        let iova = base + offset as u64;
        state.parts.entry(iova).or_insert_with(|| (memory.clone(), 0)).1 += 1;
        Ok(iova)
    }

    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        let state = &mut *self.state();
        if let Some((_, times)) = state.parts.get_mut(&iova) {
            *times -= 1;
            if *times == 0 {
                state.parts.remove(&iova);
            }
            return Ok(());
        }
        let what = "ending a DMA mapping";
        let Some(memory) = state.regions.get(&iova) else {
            let text = format!("nothing is mapped at {iova:#x}");
            return Err(self.link.0.os(what, std::io::Error::new(std::io::ErrorKind::NotFound, text)));
        };
        let size = memory.len() as u64;
        let unmap = DmaUnmap { argsz: size_of::<DmaUnmap>() as u32, flags: 0, addr: iova, size };
        // After an error the entry stays, and the memory with it: the device may still reach it.
        self.link.0.ask(what, command::DMA_UNMAP, &[unmap.as_bytes()], &[], self.link.1.reset)?;
        state.regions.remove(&iova);
        self.link.0.end_reach(iova);
        state.iovas.release(iova);
        Ok(())
    }

    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        if enabled { self.change_command(BUS_MASTER, 0) } else { self.change_command(0, BUS_MASTER) }
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.change_command(0, BUS_MASTER)?;
        if !self.can_reset {
            return Err(FunctionError::Unsupported { function: self.name.clone(), what: "resetting the function" });
        }
        self.link.0.ask("resetting the function", command::DEVICE_RESET, &[], &[], self.link.1.reset)?;
        self.set_up()?;
        if let Some(event) = self.event.get() {
            self.arm(event)?;
        }
        self.present()
    }

    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        if let Some(event) = self.event.get() {
            return Ok(event.clone());
        }
        let event = EventfdInterrupt::new().map_err(|e| self.os("making an eventfd", e))?;
        self.arm(&event)?;
        // Somebody else may have been first. Then that one is signalled.
        let kept = self.event.get_or_init(|| Arc::new(event));
        self.arm(kept)?;
        Ok(kept.clone())
    }
}

impl PciAccess for VfioUserFunction {
    fn bar_bytes(&self) -> u64 {
        self.bar0
    }

    fn load(&self, offset: u64) -> Result<u32, FunctionError> {
        let mut bytes = [0; 4];
        self.link.load(region::BAR0, offset, &mut bytes).map(|()| u32::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.link.store(region::BAR0, offset, &value.to_le_bytes())
    }

    fn load_command(&self) -> Result<u16, FunctionError> {
        let mut bytes = [0; 2];
        self.link.load(region::CONFIG, COMMAND, &mut bytes).map(|()| u16::from_le_bytes(bytes))
    }

    fn store_command(&self, value: u16) -> Result<(), FunctionError> {
        self.link.store(region::CONFIG, COMMAND, &value.to_le_bytes())
    }

    fn is_lost(&self) -> bool {
        self.shared.as_ref().is_some_and(|(memory, _)| memory.is_lost())
    }
}

impl Drop for VfioUserFunction {
    fn drop(&mut self) {
        // A server that is gone has stopped by itself; one that does not answer keeps pages that are nobody else's.
        let _ = self.change_command(0, BUS_MASTER).and_then(|()| self.set_msix(false));
    }
}
