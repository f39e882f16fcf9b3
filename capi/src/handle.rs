//! Handles: what C programs hold in place of the library's objects.
//!
//! A handle is no address. It names an entry of a table, the kind of thing that the entry holds, and how often the entry was used
//! before. So a handle that was closed, was never given out, or is of another kind is told from a valid one, whatever a program
//! passes. A call holds what it uses until it returns, so that another thread may close the handle meanwhile.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock};

use crate::error::Failure;
use crate::status::warprow_status;

/// What a handle can stand for.
pub(crate) trait Object: Any + Send + Sync {
    /// The opaque type in the header.
    type Tag;
    /// Different for each kind; below 128.
    const KIND: u8;
    /// The name of the kind, for errors.
    const NAME: &'static str;
}

type Held = Arc<dyn Any + Send + Sync>;

/// A place for a thing.
#[derive(Default)]
struct Entry {
    place: RwLock<Place>,
}

#[derive(Default)]
struct Place {
    /// How many things lay here before, and whether there is one: part of the handle.
    turn: u32,
    held: Option<Held>,
}

/// Entries are made by blocks, which stay.
const BLOCK: usize = 1024;
const BLOCKS: usize = 4096;

struct Table {
    blocks: [OnceLock<Box<[Entry]>>; BLOCKS],
    free: Mutex<Free>,
    open: AtomicUsize,
}

struct Free {
    /// Entries that were used and are free.
    used: Vec<u32>,
    /// Entries that were used at all.
    made: u32,
}

static TABLE: Table = Table {
    blocks: [const { OnceLock::new() }; BLOCKS],
    free: Mutex::new(Free { used: Vec::new(), made: 0 }),
    open: AtomicUsize::new(0),
};

/// Whether this process is a child that was forked after the library was used: devices and threads are its parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Set in each handle, so that none is an address that a program can have.
const NO_ADDRESS: u64 = 1 << 63;
const TURNS: u32 = (1 << 31) - 1;

fn entry(index: u32) -> Option<&'static Entry> {
    let block = TABLE.blocks.get(index as usize / BLOCK)?.get()?;
    block.get(index as usize % BLOCK)
}

/// Has a child that is forked from now on know that it is one.
fn watch_forks() {
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: the function only stores to an atomic, which is allowed in a child of a process with threads.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Gives a thing to the program; returns its handle.
pub(crate) fn open<T: Object>(thing: T) -> Result<*mut T::Tag, Failure> {
    watch_forks();
    let index = {
        let mut free = TABLE.free.lock().unwrap_or_else(PoisonError::into_inner);
        match free.used.pop() {
            Some(index) => index,
            None if (free.made as usize) < BLOCK * BLOCKS => {
                let index = free.made;
                free.made += 1;
                if let Some(block) = TABLE.blocks.get(index as usize / BLOCK) {
                    block.get_or_init(|| (0..BLOCK).map(|_| Entry::default()).collect());
                }
                index
            }
            None => {
                let what = format!("{} handles are open: close some", BLOCK * BLOCKS);
                return Err(Failure::new(warprow_status::OutOfResources, what));
            }
        }
    };
    let Some(entry) = entry(index) else { return Err(Failure::bug("an entry of the table of handles is missing")) };
    let mut place = entry.place.write().unwrap_or_else(PoisonError::into_inner);
    place.turn = place.turn % TURNS + 1;
    place.held = Some(Arc::new(thing));
    TABLE.open.fetch_add(1, Ordering::Relaxed);
    let bits = NO_ADDRESS | u64::from(place.turn) << 32 | u64::from(index) << 8 | u64::from(T::KIND) << 1 | 1;
    Ok(bits as usize as *mut T::Tag)
}

/// The parts of a handle: entry and turn; why it is none of a `T`.
fn parts<T: Object>(handle: *const T::Tag) -> Result<(u32, u32), Failure> {
    let bits = handle as usize as u64;
    let invalid = |what: String| Err(Failure::new(warprow_status::InvalidHandle, what));
    if bits == 0 {
        return Err(Failure::invalid(format!("the {} is NULL", T::NAME)));
    }
    if FORKED.load(Ordering::Relaxed) {
        return invalid(
            "this process was forked after the library was used, and its drives and threads are the parent's: open what it needs before \
             in the parent, or start it anew with exec"
                .to_owned(),
        );
    }
    if bits & NO_ADDRESS == 0 || bits & 1 == 0 || bits >> 1 & 0x7f != u64::from(T::KIND) {
        return invalid(format!("{bits:#x} is no handle of a {}", T::NAME));
    }
    Ok(((bits >> 8) as u32 & 0xff_ffff, (bits >> 32) as u32 & TURNS))
}

fn closed<T: Object>() -> Failure {
    Failure::new(warprow_status::InvalidHandle, format!("the {} was closed", T::NAME))
}

/// What a handle stands for.
pub(crate) fn get<T: Object>(handle: *const T::Tag) -> Result<Arc<T>, Failure> {
    let (index, turn) = parts::<T>(handle)?;
    let entry = entry(index).ok_or_else(closed::<T>)?;
    let place = entry.place.read().unwrap_or_else(PoisonError::into_inner);
    let held = place.held.as_ref().filter(|_| place.turn == turn).ok_or_else(closed::<T>)?;
    held.clone().downcast().map_err(|_| closed::<T>())
}

/// Takes a thing back from the program. What calls of other threads use goes when they return.
pub(crate) fn close<T: Object>(handle: *mut T::Tag) -> Result<Arc<T>, Failure> {
    let (index, turn) = parts::<T>(handle)?;
    let entry = entry(index).ok_or_else(closed::<T>)?;
    let held = {
        let mut place = entry.place.write().unwrap_or_else(PoisonError::into_inner);
        let is_it = place.turn == turn && place.held.as_ref().is_some_and(|held| held.is::<T>());
        if is_it { place.held.take() } else { None }
    };
    let held = held.ok_or_else(closed::<T>)?;
    TABLE.open.fetch_sub(1, Ordering::Relaxed);
    TABLE.free.lock().unwrap_or_else(PoisonError::into_inner).used.push(index);
    held.downcast().map_err(|_| closed::<T>())
}

/// How many handles are open, of all kinds.
pub(crate) fn count() -> usize {
    TABLE.open.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tag;
    struct Thing(u32);
    struct Other;

    impl Object for Thing {
        type Tag = Tag;
        const KIND: u8 = 120;
        const NAME: &'static str = "thing";
    }

    impl Object for Other {
        type Tag = Tag;
        const KIND: u8 = 121;
        const NAME: &'static str = "other thing";
    }

    fn status<T>(result: Result<T, Failure>) -> warprow_status {
        result.map_or_else(|failure| failure.status, |_| warprow_status::Ok)
    }

    #[test]
    fn a_handle_is_good_until_it_is_closed() {
        let first = open(Thing(1)).unwrap();
        let second = open(Thing(2)).unwrap();
        assert_eq!((get::<Thing>(first).unwrap().0, get::<Thing>(second).unwrap().0), (1, 2));
        assert_eq!(status(get::<Other>(first)), warprow_status::InvalidHandle);
        assert_eq!(close::<Thing>(first).unwrap().0, 1);
        assert_eq!(status(get::<Thing>(first)), warprow_status::InvalidHandle);
        assert_eq!(status(close::<Thing>(first)), warprow_status::InvalidHandle);
        // The entry is used again, and the old handle does not lead to it.
        let third = open(Thing(3)).unwrap();
        assert_eq!(status(get::<Thing>(first)), warprow_status::InvalidHandle);
        assert_eq!(get::<Thing>(third).unwrap().0, 3);
        for handle in [second, third] {
            close::<Thing>(handle).unwrap();
        }
    }

    #[test]
    fn anything_else_is_no_handle() {
        let number = 7u64;
        for handle in [std::ptr::from_ref(&number) as usize, 1, usize::MAX, NO_ADDRESS as usize, 0x8000_0001_0000_00f1]
        {
            assert_eq!(status(get::<Thing>(handle as *const Tag)), warprow_status::InvalidHandle, "{handle:#x}");
            assert_eq!(status(close::<Thing>(handle as *mut Tag)), warprow_status::InvalidHandle, "{handle:#x}");
        }
        assert_eq!(status(get::<Thing>(std::ptr::null())), warprow_status::InvalidArgument);
    }

    #[test]
    fn what_a_call_uses_outlives_its_handle() {
        let handle = open(Thing(9)).unwrap() as usize;
        let used = get::<Thing>(handle as *const Tag).unwrap();
        std::thread::spawn(move || drop(close::<Thing>(handle as *mut Tag).unwrap())).join().unwrap();
        assert_eq!(used.0, 9);
    }
}
