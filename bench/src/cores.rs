//! Which processors the two threads of a contender run on.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Two processors, one for the submitting thread, which is the caller's, and one for answering threads.
///
/// Left to itself, a busy system may for seconds put both threads on one processor, where they take turns a time slice at a
/// time; that measures the scheduler.
#[derive(Debug)]
pub struct Cores {
    before: CpuSet,
    submitting: usize,
    answering: usize,
}

impl Cores {
    /// Takes two processors that this thread may use, not of one physical core if there is a choice, and moves the caller to
    /// the first. `None` if there are no two, or the system does not allow it.
    pub fn two() -> Option<Self> {
        let before = sched_getaffinity(this_thread()).ok()?;
        let mut allowed = (0..CpuSet::count()).filter(|&cpu| before.is_set(cpu).unwrap_or(false));
        let submitting = allowed.next()?;
        let others: Vec<usize> = allowed.collect();
        let siblings = siblings(submitting);
        let answering = *others.iter().find(|cpu| !siblings.contains(cpu)).or(others.first())?;
        pin(submitting)?;
        Some(Self { before, submitting, answering })
    }

    /// Runs `start`; threads that it starts inherit the second processor.
    pub fn answering<T>(cores: Option<&Self>, start: impl FnOnce() -> T) -> T {
        let Some(cores) = cores else { return start() };
        // Where pinning fails after it has worked, both threads stay on one processor: slow, and plain to see.
        let _ = pin(cores.answering);
        let result = start();
        let _ = pin(cores.submitting);
        result
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        let _ = sched_setaffinity(this_thread(), &self.before);
    }
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}

fn pin(cpu: usize) -> Option<()> {
    let mut set = CpuSet::new();
    set.set(cpu).ok()?;
    sched_setaffinity(this_thread(), &set).ok()
}

/// The processors that share a physical core with `cpu`, itself included; empty where the system does not tell.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(&std::fs::read_to_string(path).unwrap_or_default())
}

/// `0-2,8` as the kernel writes it.
fn parse_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().take(CpuSet::count()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list("5"), [5]);
        assert!(parse_list("").is_empty());
        assert!(parse_list("0-99999999").len() <= CpuSet::count());
    }

    #[test]
    fn the_caller_gets_its_processors_back() {
        let before = sched_getaffinity(this_thread()).unwrap();
        let Some(cores) = Cores::two() else { return eprintln!("skipped: fewer than two processors") };
        assert_ne!(cores.submitting, cores.answering);
        let there = || std::thread::spawn(|| sched_getaffinity(this_thread()).unwrap()).join().unwrap();
        assert!(Cores::answering(Some(&cores), there).is_set(cores.answering).unwrap());
        assert!(there().is_set(cores.submitting).unwrap());
        drop(cores);
        assert_eq!(sched_getaffinity(this_thread()).unwrap(), before);
    }
}
