//! Which processors the two threads of a contender run on.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Processors for the threads that answer, and for the caller.
///
/// Left to itself, a busy system may for seconds put two threads on one processor, where they take turns a time slice at a
/// time; that measures the scheduler.
#[derive(Debug)]
pub struct Cores {
    before: CpuSet,
    /// Where the caller stays.
    home: CpuSet,
    answering: Vec<usize>,
}

impl Cores {
    /// Takes two processors that this thread may use, not of one physical core if there is a choice, and moves the caller to
    /// one of them. `None` if there are no two, or the system does not allow it.
    pub fn two() -> Option<Self> {
        let before = sched_getaffinity(this_thread()).ok()?;
        let [answering, submitting, ..] = spread(&allowed(&before), siblings)[..] else { return None };
        let home = only(submitting)?;
        sched_setaffinity(this_thread(), &home).ok()?;
        Some(Self { before, home, answering: vec![answering] })
    }

    /// Takes a processor for each of `count` threads that answer, of different physical cores as long as there are any, and leaves the others to
    /// the caller. `None` if there are not as many and one more, or the system does not allow it.
    pub fn each(count: usize) -> Option<Self> {
        let before = sched_getaffinity(this_thread()).ok()?;
        let all = allowed(&before);
        (all.len() > count).then_some(())?;
        // The first does the system's own work as well.
        let mut answering = spread(&all[1..], siblings);
        answering.truncate(count);
        let mut home = CpuSet::new();
        all.iter().filter(|cpu| !answering.contains(cpu)).try_for_each(|&cpu| home.set(cpu)).ok()?;
        sched_setaffinity(this_thread(), &home).ok()?;
        Some(Self { before, home, answering })
    }

    /// Runs `start`; threads that it starts inherit the processor of answering thread `nth`.
    pub fn answering<T>(cores: Option<&Self>, nth: usize, start: impl FnOnce() -> T) -> T {
        let Some((cores, cpu)) = cores.and_then(|cores| Some((cores, *cores.answering.get(nth)?))) else {
            return start();
        };
        // Where pinning fails after it has worked, threads stay on one processor: slow, and plain to see.
        let _ = only(cpu).map(|set| sched_setaffinity(this_thread(), &set));
        let result = start();
        let _ = sched_setaffinity(this_thread(), &cores.home);
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

fn only(cpu: usize) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    set.set(cpu).ok()?;
    Some(set)
}

fn allowed(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// `cpus`, one of each physical core first. Where no two share one, by what the system says, every second first: a guest is often
/// not told which of its processors are threads of one core, and then they are neighbours.
fn spread(cpus: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut seen = Vec::new();
    let mut first = Vec::new();
    let mut rest = Vec::new();
    for &cpu in cpus {
        if seen.contains(&cpu) {
            rest.push(cpu);
        } else {
            first.push(cpu);
            seen.extend(siblings(cpu));
        }
    }
    if rest.is_empty() {
        rest = cpus.iter().skip(1).step_by(2).copied().collect();
        first = cpus.iter().step_by(2).copied().collect();
    }
    first.append(&mut rest);
    first
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
    fn cores_come_before_their_threads() {
        let pairs = |cpu: usize| vec![cpu & !1, cpu | 1];
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5], pairs), [0, 2, 4, 1, 3, 5]);
        let halves = |cpu: usize| vec![cpu % 3, cpu % 3 + 3];
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5], halves), [0, 1, 2, 3, 4, 5]);
        assert_eq!(spread(&[1, 2, 4, 5], halves), [1, 2, 4, 5]);
        // Nothing is told.
        assert_eq!(spread(&[0, 1, 2, 3, 6], |_| Vec::new()), [0, 2, 6, 1, 3]);
        assert_eq!(spread(&[7], |cpu| vec![cpu]), [7]);
    }

    #[test]
    fn the_caller_gets_its_processors_back() {
        let before = sched_getaffinity(this_thread()).unwrap();
        let Some(cores) = Cores::two() else { return eprintln!("skipped: fewer than two processors") };
        let there = || std::thread::spawn(|| sched_getaffinity(this_thread()).unwrap()).join().unwrap();
        let submitting = there();
        assert_eq!(allowed(&Cores::answering(Some(&cores), 0, there)), cores.answering);
        assert_eq!(allowed(&submitting).len(), 1);
        assert_ne!(allowed(&submitting), cores.answering);
        assert_eq!(there(), submitting);
        // There is no other.
        assert_eq!(Cores::answering(Some(&cores), 1, there), submitting);
        drop(cores);
        assert_eq!(sched_getaffinity(this_thread()).unwrap(), before);
        let cores = Cores::each(1).unwrap();
        assert_eq!(allowed(&Cores::answering(Some(&cores), 0, there)), cores.answering);
        // It keeps all but that.
        let mut rest = allowed(&before);
        rest.retain(|cpu| !cores.answering.contains(cpu));
        assert_eq!(allowed(&there()), rest);
        drop(cores);
        assert_eq!(there(), before);
        assert!(Cores::each(allowed(&before).len()).is_none());
        assert_eq!(there(), before);
    }
}
