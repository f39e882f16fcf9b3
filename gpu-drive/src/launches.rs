//! Launches of the answering kernel for one drive, also where CUDA holds one back behind kernels that it has nothing to do with.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use warprow_gpu_queues::{DeviceMemory, Gpu, PinnedMemory};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi;
use crate::player::{PATIENCE, Player, PlayerError, Stream};

/// Queues of a launch at most; the host serves those beyond.
pub(crate) const MAX_QUEUES: usize = 256;
/// Mappings that the GPU reaches at most; reads into those beyond are the host's.
pub(crate) const MAX_MAPPINGS: usize = 1024;
const QUEUE_BYTES: usize = size_of::<abi::Queue>();
const MAPPING_BYTES: usize = size_of::<abi::Mapping>();
/// How many launches of a drive there can be: one that serves, and those that were called off and have not come yet.
const PLACES: usize = 6;
/// Where things lie in the pinned memory of a place: the words of `abi::words`, the queues, the mappings on their way.
const QUEUES: usize = 128;
const MAPPINGS: usize = (QUEUES + MAX_QUEUES * QUEUE_BYTES).next_multiple_of(128);
const PINNED_BYTES: usize = (MAPPINGS + MAX_MAPPINGS * MAPPING_BYTES).next_multiple_of(4096);
/// Where things lie in GPU memory: the drive's clock, and behind it the places, each with what the blocks of a launch share, and the
/// mappings.
const CLOCK_BYTES: u64 = 128;
const COMMON: u64 = 0;
const DEVICE_MAPPINGS: u64 = 128;
const DEVICE_BYTES: u64 = DEVICE_MAPPINGS + (MAX_MAPPINGS * MAPPING_BYTES) as u64;
/// Looks at the words in pinned memory before others are let on this thread's core.
const LOOKS: u32 = 2000;
/// How long a launch is waited for before another stream is tried. Blocks that find room begin within 20 µs.
const HELD_BACK: Duration = Duration::from_millis(1);
/// How long a launch is waited for between two questions to CUDA, whether a kernel has gone wrong.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(20);

const _: () = assert!(abi::COMMON_BYTES <= DEVICE_MAPPINGS - COMMON);

/// What launches use, one at a time, and their memory.
pub(crate) struct Launches {
    // Dropped first: their streams wait for kernels.
    places: Vec<Place>,
    /// The place that is tried first: where the latest launch was not held back.
    preferred: usize,
    /// Launches so far.
    number: u32,
    pinned: PinnedMemory,
    device: DeviceMemory,
}

/// A stream, with memory that its launches alone use. CUDA has fewer hardware queues than there are streams. Streams that share one
/// wait for each other's kernels, and a look-up that waits for the drive may hold it back in this way. Other streams share other queues.
struct Place {
    stream: Stream,
    /// The number of a launch that was called off and has not come yet.
    called_off: Option<u32>,
    /// Whether GPU memory has the mappings.
    is_uploaded: bool,
}

impl Launches {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self, PlayerError> {
        let place = |_| Ok(Place { stream: Stream::new(gpu)?, called_off: None, is_uploaded: false });
        Ok(Self {
            places: (0..PLACES).map(place).collect::<Result<_, PlayerError>>()?,
            preferred: 0,
            number: 0,
            pinned: PinnedMemory::allocate(gpu, (PLACES * PINNED_BYTES) as u64)?,
            device: DeviceMemory::new(gpu, CLOCK_BYTES + PLACES as u64 * DEVICE_BYTES)?,
        })
    }

    /// Address of the drive's clock.
    pub(crate) fn clock(&self) -> u64 {
        self.device.address()
    }

    /// Launches so far.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The mappings have changed.
    pub(crate) fn forget_mappings(&mut self) {
        self.places.iter_mut().for_each(|place| place.is_uploaded = false);
    }

    /// Launches a turn for `queues` and waits for its end; they are then as the kernel has left them. What `turn` says of queues, mappings
    /// and words is filled in here. `look` is called again and again meanwhile: it may ask the turn to end. After an error whatever was
    /// launched may come yet.
    ///
    /// # Safety
    /// What `turn`, `queues` and `mappings` name is as `cuda/answer.cu` says, and stays until this has returned, or, after an error, until
    /// the turn was asked to end.
    pub(crate) unsafe fn run(
        &mut self,
        player: &Player,
        turn: &abi::Turn,
        queues: &mut [abi::Queue],
        mappings: &[abi::Mapping],
        mut look: impl FnMut(),
    ) -> Result<(), PlayerError> {
        let began = Instant::now();
        loop {
            let index = self.free_place(began)?;
            // SAFETY: the caller's promise; nothing was launched at this place that has not ended.
            unsafe { self.launch(player, index, turn, queues, mappings)? };
            if self.has_ended(index, began, &mut look)? {
                self.preferred = index;
                let pinned = self.pinned.memory();
                for (number, queue) in queues.iter_mut().enumerate() {
                    let mut bytes = [0; QUEUE_BYTES];
                    pinned.read(index * PINNED_BYTES + QUEUES + number * QUEUE_BYTES, &mut bytes);
                    *queue = abi::Queue::read_from_bytes(&bytes).unwrap_or(*queue);
                }
                return Ok(());
            }
        }
    }

    fn word(&self, index: usize, word: usize) -> u32 {
        self.pinned.memory().load_u32(index * PINNED_BYTES + word)
    }

    fn is_free(&mut self, index: usize) -> bool {
        let ended = self.word(index, abi::words::ENDED);
        let Some(place) = self.places.get_mut(index) else { return false };
        if place.called_off == Some(ended) {
            place.called_off = None;
        }
        place.called_off.is_none()
    }

    /// The place for the next launch: the preferred one, or the next that is free.
    fn free_place(&mut self, began: Instant) -> Result<usize, PlayerError> {
        let preferred = self.preferred;
        loop {
            let mut indices = (0..PLACES).map(|step| (preferred + step) % PLACES);
            if let Some(index) = indices.find(|&index| self.is_free(index)) {
                fence(Ordering::Acquire);
                return Ok(index);
            }
            if began.elapsed() > PATIENCE {
                return Err(PlayerError::HeldBack(PATIENCE));
            }
            std::thread::yield_now();
        }
    }

    /// # Safety
    /// As for [`run`](Self::run), and the place is free.
    unsafe fn launch(
        &mut self,
        player: &Player,
        index: usize,
        turn: &abi::Turn,
        queues: &[abi::Queue],
        mappings: &[abi::Mapping],
    ) -> Result<(), PlayerError> {
        let Some(place) = self.places.get_mut(index) else { return Ok(()) };
        self.number = self.number.wrapping_add(1);
        let (pinned, at) = (self.pinned.memory(), index * PINNED_BYTES);
        let device = self.device.address() + CLOCK_BYTES + index as u64 * DEVICE_BYTES;
        pinned.write(at + QUEUES, queues.as_bytes());
        if !place.is_uploaded && !mappings.is_empty() {
            let bytes = mappings.as_bytes();
            pinned.write(at + MAPPINGS, bytes);
            let (to, from) = (device + DEVICE_MAPPINGS, self.pinned.address() + (at + MAPPINGS) as u64);
            // SAFETY: both have room for all mappings, and stay until the kernel behind it has ended.
            place.stream.with("the mappings of a drive", |stream| unsafe {
                sys::cuMemcpyAsync(to, from, bytes.len(), stream)
            })?;
        }
        place.is_uploaded = true;
        let turn = abi::Turn {
            queues: self.pinned.address() + (at + QUEUES) as u64,
            mappings: device + DEVICE_MAPPINGS,
            common: device + COMMON,
            words: self.pinned.address() + at as u64,
            mapping_count: mappings.len() as u32,
            number: self.number,
            ..*turn
        };
        // SAFETY: the caller's promise; the rest is this place's.
        unsafe { player.launch(&place.stream, queues.len() as u32, &turn) }
    }

    /// Waits for the end of the latest launch, at place `index`; false if it was called off instead: it then touches nothing of the
    /// drive's when it comes. `began`: when the turn began.
    fn has_ended(&mut self, index: usize, began: Instant, look: &mut impl FnMut()) -> Result<bool, PlayerError> {
        let (number, launched) = (self.number, Instant::now());
        let (mut looks, mut asked, mut has_begun) = (0u32, Duration::ZERO, false);
        while self.word(index, abi::words::ENDED) != number {
            looks += 1;
            look();
            if looks <= LOOKS {
                std::hint::spin_loop();
                continue;
            }
            let waited = launched.elapsed();
            has_begun |= self.word(index, abi::words::BEGUN) == number;
            if !has_begun && waited >= HELD_BACK && self.call_off(index) {
                return Ok(false);
            }
            if waited - asked >= BETWEEN_QUESTIONS {
                let is_done = self.places.get(index).map_or(Ok(false), |place| place.stream.is_done())?;
                if is_done && self.word(index, abi::words::ENDED) != number {
                    return Err(PlayerError::Unended(number));
                }
                asked = waited;
            }
            if began.elapsed() > PATIENCE {
                return Err(PlayerError::HeldBack(PATIENCE));
            }
            std::thread::yield_now();
        }
        // What the launch's blocks have stored comes before the word.
        fence(Ordering::Acquire);
        Ok(true)
    }

    /// Calls the latest launch off, at place `index`, if there is another place to launch at. False: it goes on.
    fn call_off(&mut self, index: usize) -> bool {
        let Some(next) = (1..PLACES).map(|step| (index + step) % PLACES).find(|&other| self.is_free(other)) else {
            return false;
        };
        let number = self.number;
        self.pinned.memory().store_u32(index * PINNED_BYTES + abi::words::CALLED_OFF, number);
        // Either this sees that a block has come, or each block sees that it is called off: both sides have such a fence between their steps.
        fence(Ordering::SeqCst);
        if self.word(index, abi::words::BEGUN) == number {
            return false;
        }
        let Some(place) = self.places.get_mut(index) else { return false };
        place.called_off = Some(number);
        self.preferred = next;
        tracing::debug!(number, next, "a launch for a drive is held back; another stream is tried");
        true
    }
}
