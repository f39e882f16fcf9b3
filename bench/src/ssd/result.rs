//! What was found, and how it is shown.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::output::{per_second, table};

/// By how much a look-up may be longer than its drives are busy: so many microseconds, and so many nanoseconds an id.
const OVERHEAD: (f64, f64) = (15.0, 1.0);
/// The share of the threads' overhead that the GPU's may be.
const OVERHEAD_RATIO: f64 = 0.5;
/// Processor time that a call may take, microseconds.
const CALLER_US: f64 = 10.0;

/// One way of driving look-ups; medians.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Queue sets, or threads.
    pub by: u32,
    /// Which memory the queues lay in that a GPU drove ([`MemoryPlacement`](warprow_gpu_queues::MemoryPlacement)).
    #[serde(default)]
    pub memory: Option<String>,
    /// What look-ups by a GPU did without, if anything.
    #[serde(default)]
    pub without: Option<String>,
    /// Of how many kernels a look-up by a GPU was, where that was asked for.
    #[serde(default)]
    pub kernels: Option<String>,
    /// From the call until its caller has seen that all rows are there, microseconds.
    pub seen_us: f64,
    /// From the first doorbell to the last completion by the controllers' clocks; none of what asks no controller.
    pub drives_us: Option<f64>,
    /// The difference of the two.
    pub overhead_us: Option<f64>,
    /// Processor time of the calling thread: of a look-up by the GPU that of the call, else of all of it.
    pub caller_us: f64,
    /// By the GPU's clock, of a look-up by the GPU: what comes before the first command, reading, and what comes behind.
    pub stages_us: Option<[f64; 3]>,
    /// The sum of these three less the drives' time.
    #[serde(default)]
    pub beside_on_gpu_us: Option<f64>,
    /// Ids a second.
    pub ids_per_second: f64,
    /// Read commands of a look-up.
    pub commands: u64,
    /// Look-ups, each with fresh ids.
    pub runs: u64,
    /// Rows compared.
    pub checked: u64,
}

/// One number of ids.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SsdResult {
    /// The timing of the drives.
    pub profile: String,
    /// Drives.
    pub drives: u32,
    /// Ids of a look-up.
    pub ids: u64,
    /// By the GPU, for each number of queue sets; none without a GPU.
    pub gpu: Vec<Measured>,
    /// By threads, for each number of them.
    pub cpu: Vec<Measured>,
    /// By threads with io_uring on the drives' files, if they are files.
    pub uring: Vec<Measured>,
    /// What the overhead may be, microseconds.
    pub overhead_limit_us: f64,
    /// The overhead of the GPU's best by that of the threads' best.
    pub overhead_ratio: Option<f64>,
    /// Whether it is within both.
    pub overhead_met: Option<bool>,
    /// Time of the threads' best by that of the GPU's best.
    pub throughput_ratio: Option<f64>,
    /// Time of io_uring's best by that of the GPU's best; without a GPU, of the threads' best.
    pub uring_ratio: Option<f64>,
    /// Whether a call takes no more processor time than it may.
    pub caller_met: Option<bool>,
}

/// The one with the shortest look-ups, of those that do without nothing.
pub(crate) fn best(all: &[Measured]) -> Option<&Measured> {
    let whole = all.iter().filter(|it| it.without.is_none());
    whole.min_by(|a, b| a.seen_us.total_cmp(&b.seen_us))
}

impl SsdResult {
    /// `by`: by the GPU, by threads, by io_uring.
    pub(super) fn new(profile: &str, drives: u32, ids: u64, by: [Vec<Measured>; 3]) -> Self {
        let overhead_limit_us = OVERHEAD.0 + OVERHEAD.1 * ids as f64 / 1e3;
        let [ours, threads, io_uring] = by.each_ref().map(|all| best(all));
        let both = ours.zip(threads);
        let beside = both.and_then(|(ours, threads)| ours.overhead_us.zip(threads.overhead_us));
        Self {
            profile: profile.to_owned(),
            drives,
            ids,
            overhead_limit_us,
            overhead_ratio: beside.map(|(ours, threads)| ours / threads),
            overhead_met: beside.map(|(ours, threads)| ours <= overhead_limit_us && ours <= OVERHEAD_RATIO * threads),
            throughput_ratio: both.map(|(ours, threads)| threads.seen_us / ours.seen_us),
            uring_ratio: ours.or(threads).zip(io_uring).map(|(ours, theirs)| theirs.seen_us / ours.seen_us),
            caller_met: ours.map(|ours| ours.caller_us <= CALLER_US),
            gpu: by[0].clone(),
            cpu: by[1].clone(),
            uring: by[2].clone(),
        }
    }

    /// The shortest look-ups by the GPU, by threads, and by io_uring.
    pub fn best(&self) -> [Option<&Measured>; 3] {
        [&self.gpu, &self.cpu, &self.uring].map(|all| best(all))
    }
}

/// A table of the best of each, one of all, and in how many lines the aims are met.
pub fn show(results: &[SsdResult]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let us = |time: f64| format!("{time:.1}");
    let name = |it: &SsdResult| format!("{} / {} / {}", it.profile, it.drives, it.ids);
    let lines = results.iter().map(|it| {
        let [gpu, cpu, uring] = it.best();
        let of =
            |it: Option<&Measured>, what: fn(&Measured) -> Option<f64>| it.and_then(what).map_or_else(String::new, us);
        let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        let by = |it: Option<&Measured>| it.map_or_else(String::new, |it| it.by.to_string());
        let verdict = match it.overhead_met {
            None => "",
            Some(true) => " met",
            Some(false) => " NOT met",
        };
        [
            name(it),
            of(gpu, |it| Some(it.seen_us)),
            of(gpu, |it| it.overhead_us),
            gpu.map_or_else(String::new, |_| format!("{}{verdict}", us(it.overhead_limit_us))),
            of(gpu, |it| Some(it.caller_us)),
            by(gpu),
            of(cpu, |it| Some(it.seen_us)),
            of(cpu, |it| it.overhead_us),
            of(cpu, |it| Some(it.caller_us)),
            by(cpu),
            ratio(it.overhead_ratio),
            ratio(it.throughput_ratio),
            of(uring, |it| Some(it.seen_us)),
            by(uring),
            ratio(it.uring_ratio),
        ]
    });
    let header = [
        "timing / drives / ids",
        "by the GPU",
        "beside drives",
        "may be",
        "the call's CPU",
        "queue sets",
        "by threads",
        "beside drives",
        "caller's CPU",
        "threads",
        "beside, ratio",
        "times as fast",
        "by io_uring",
        "threads",
        "times as fast",
    ];
    writeln!(
        text,
        "The best of each, by the caller's clock; median us. \"Beside drives\": the look-up less the drives' own time."
    )?;
    writeln!(text, "{}\n", table(header, lines))?;
    let lines = results.iter().flat_map(|it| {
        let of = move |who: &'static str, all: &'_ [Measured]| -> Vec<[String; 11]> {
            let line = |one: &Measured| {
                [
                    name(it),
                    format!(
                        "{} {}{}{}{}",
                        one.by,
                        who,
                        if one.by == 1 { "" } else { "s" },
                        one.memory.iter().chain(&one.kernels).map(|how| format!(", {how}")).collect::<String>(),
                        one.without.as_ref().map_or_else(String::new, |parts| format!(", without {parts}"))
                    ),
                    us(one.seen_us),
                    one.drives_us.map_or_else(String::new, us),
                    one.overhead_us.map_or_else(String::new, us),
                    one.stages_us.map_or_else(String::new, |stages| stages.map(us).join(" + ")),
                    one.beside_on_gpu_us.map_or_else(String::new, us),
                    us(one.caller_us),
                    per_second(one.ids_per_second),
                    one.commands.to_string(),
                    one.runs.to_string(),
                ]
            };
            all.iter().map(line).collect()
        };
        [of("queue set", &it.gpu), of("thread", &it.cpu), of("io_uring thread", &it.uring)].into_iter().flatten()
    });
    let header = [
        "timing / drives / ids",
        "by",
        "look-up",
        "drives",
        "beside",
        "on the GPU's clock",
        "beside there",
        "caller's CPU",
        "ids/s",
        "commands",
        "look-ups",
    ];
    writeln!(text, "All; median us.")?;
    writeln!(text, "{}", table(header, lines))?;
    let checked: u64 =
        results.iter().flat_map(|it| it.gpu.iter().chain(&it.cpu).chain(&it.uring)).map(|it| it.checked).sum();
    writeln!(text, "{checked} rows compared, all of every answer.")?;
    let met = |verdict: fn(&SsdResult) -> Option<bool>| {
        let known = results.iter().filter_map(verdict);
        (known.clone().filter(|met| *met).count(), known.count())
    };
    let ((overhead, of), (caller, _)) = (met(|it| it.overhead_met), met(|it| it.caller_met));
    if of > 0 {
        writeln!(
            text,
            "Time beside drives: within {} us + {} ns an id and {OVERHEAD_RATIO} of the threads' in {overhead} of {of} lines; \
             {CALLER_US} us of the caller's processor: in {caller}.",
            OVERHEAD.0, OVERHEAD.1
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(by: u32, seen_us: f64, overhead_us: f64) -> Measured {
        Measured {
            by,
            memory: None,
            without: None,
            kernels: None,
            seen_us,
            drives_us: Some(seen_us - overhead_us),
            overhead_us: Some(overhead_us),
            caller_us: 4.0,
            stages_us: None,
            beside_on_gpu_us: None,
            ids_per_second: 1e9 / seen_us,
            commands: 9,
            runs: 3,
            checked: 4,
        }
    }

    #[test]
    fn the_best_of_each_are_compared() {
        let cpu = vec![measured(1, 200.0, 60.0), measured(2, 150.0, 50.0), measured(4, 170.0, 20.0)];
        let uring = Measured { drives_us: None, overhead_us: None, ..measured(1, 250.0, 0.0) };
        let of = |overhead| {
            let gpu = vec![measured(1, 100.0, overhead)];
            SsdResult::new("none", 1, 10_000, [gpu, cpu.clone(), vec![uring.clone()]])
        };
        let it = of(24.0);
        assert_eq!((it.best()[1].unwrap().by, it.overhead_limit_us, it.uring_ratio), (2, 25.0, Some(2.5)));
        assert_eq!((it.throughput_ratio, it.overhead_met, it.caller_met), (Some(1.5), Some(true), Some(true)));
        assert_eq!(it.overhead_ratio, Some(24.0 / 50.0));
        assert_eq!(of(25.5).overhead_met, Some(false), "more than it may be");
        let ablated = Measured { without: Some("dedupe".to_owned()), ..measured(2, 50.0, 20.0) };
        let with =
            SsdResult::new("none", 1, 10_000, [vec![ablated, measured(1, 100.0, 24.0)], cpu.clone(), Vec::new()]);
        assert_eq!(with.best()[0].unwrap().by, 1, "what does without a part is no best");
        assert!(show(&[with]).unwrap().contains("2 queue sets, without dedupe"));
        let text = show(&[it, of(25.5)]).unwrap();
        assert!(
            text.contains("in 1 of 2 lines") && text.contains("NOT met") && text.contains("40 rows compared"),
            "{text}"
        );
        let without = SsdResult::new("none", 1, 10_000, [Vec::new(), cpu.clone(), vec![uring.clone()]]);
        assert_eq!((without.overhead_met, without.throughput_ratio), (None, None));
        assert_eq!(without.uring_ratio, Some(250.0 / 150.0));
        assert!(!show(&[without]).unwrap().contains("lines"));
    }
}
