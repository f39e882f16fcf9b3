//! Mutants: copies of the sources in which one synchronisation is missing, each of which the checks must find, or else
//! `survivors.txt` says why they cannot.
//!
//! | in the sources | in a mutant |
//! |---|---|
//! | `__syncthreads()`, `__syncwarp()` | nothing |
//! | `__ballot_sync`, `__shfl_*_sync`, `__reduce_add_sync` | the lane's own vote or value: it meets nobody |
//! | the mask of one of them, where it is not all lanes | all lanes |
//! | an atomic | a load and a store, between which others may run |
//!
//! Fences are not among them: the shim runs all lanes on one core, so that it can tell nothing about them (`simt/simt.h`).
//!
//! A sample is tried by every `cargo test`; which one, `WARPROW_MUTANTS` says (a number). All of them, some minutes, with a table:
//! `cargo test -p warprow-kernels --test simt mutants::all -- --ignored --exact --nocapture`; `WARPROW_ONLY=submit,share_of` tries those
//! whose names contain one of these.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, process};

use fastrand::Rng;

use crate::covered::{CHECKS, Check};
use crate::shim::{Shim, Sources, compiler, sources};

/// Tells the child the name of its mutant.
const CHOICE: &str = "WARPROW_MUTANT";
/// The name of the mutant in which nothing is missing, and everything must be well.
const NOTHING: &str = "nothing";
/// Tells the child how many percent of the checks' seeds it has.
const PERCENT: &str = "WARPROW_MUTANT_PERCENT";
/// A kernel that takes more processor time has failed; usual are milliseconds.
const LIMIT: Duration = Duration::from_secs(20);
/// A child whose lanes spin without a yield is ended.
const HANGS: Duration = Duration::from_secs(300);

const REMOVED: [&str; 2] = ["__syncthreads", "__syncwarp"];
const ALONE: [(&str, &str); 5] = [
    ("__ballot_sync", "torn::ballot"),
    ("__shfl_sync", "torn::shuffle"),
    ("__shfl_up_sync", "torn::shuffle"),
    ("__shfl_xor_sync", "torn::shuffle"),
    ("__reduce_add_sync", "torn::sum"),
];
const ATOMICS: [&str; 7] = ["atomicAdd", "atomicSub", "atomicOr", "atomicAnd", "atomicExch", "atomicMin", "atomicCAS"];

/// A change to one place.
struct Mutant {
    file: String,
    function: String,
    /// What is missing, and which one of those in the function.
    what: String,
    line: usize,
    /// What stands there instead, from the first byte to the last.
    place: (usize, usize),
    instead: String,
}

impl Mutant {
    /// By this `survivors.txt` knows it.
    fn name(&self) -> String {
        format!("{} {} {}", self.file, self.function, self.what)
    }

    fn apply(&self, mut sources: Sources) -> Sources {
        let (_, text) = sources.iter_mut().find(|(name, _)| *name == self.file).unwrap();
        text.replace_range(self.place.0..self.place.1, &self.instead);
        sources
    }
}

/// The name of the function that is defined at this line, if one is.
fn defined(line: &str) -> Option<&str> {
    let is_definition =
        ["DEVICE ", "APART ", "KERNEL ", "template ", "    METHOD "].iter().any(|word| line.starts_with(word))
            && line.ends_with('{');
    let before =
        line.split_once("(const Lookup").or_else(|| line.rsplit_once(") {").and_then(|(head, _)| head.split_once('(')));
    // Launch bounds come before a kernel's name, and have brackets of their own.
    let head = match line.find("__launch_bounds__") {
        Some(at) => line[at..].split_once(") ")?.1.split('(').next()?,
        None => before?.0,
    };
    let name = head.rsplit(' ').next()?;
    is_definition.then_some(name)
}

/// Where the call that begins at `at` ends, and its first argument.
fn call(text: &str, at: usize) -> Option<(usize, &str)> {
    let open = at + text[at..].find('(')?;
    let mut depth = 0;
    let mut first = None;
    for (i, c) in text[open..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Some((open + i + 1, text[open + 1..first.unwrap_or(open + i)].trim())),
            ')' => depth -= 1,
            ',' if depth == 1 && first.is_none() => first = Some(open + i),
            _ => {}
        }
    }
    None
}

/// All of them, in the order of the sources.
fn mutants(sources: &Sources) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (file, text) in sources.iter().filter(|(name, _)| name.ends_with(".cuh") && name != "order.cuh") {
        let (mut function, mut numbers, mut at) = (String::new(), BTreeMap::<String, u32>::new(), 0);
        for (line, words) in (1..).zip(text.split('\n')) {
            if let Some(name) = defined(words) {
                function = name.to_owned();
                // Overloads of one name count on.
            }
            let code = words.split("//").next().unwrap_or_default();
            let mut add = |what: &str, from: usize, to: usize, instead: &str| {
                let number = numbers.entry(format!("{function} {what}")).or_default();
                *number += 1;
                let what = format!("{what} {number}");
                let file = file.clone();
                let function = function.clone();
                let instead = instead.to_owned();
                mutants.push(Mutant { file, function, what, line, place: (at + from, at + to), instead });
            };
            let mut from = 0;
            while let Some(found) = code[from..].find(|c: char| c.is_ascii_alphabetic() || c == '_').map(|i| from + i) {
                let length = code[found..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let word = &code[found..length.map_or(code.len(), |length| found + length)];
                from = found + word.len();
                if !code[from..].starts_with('(') {
                    continue;
                }
                let Some((end, first)) = call(text, at + found) else { continue };
                if REMOVED.contains(&word) {
                    add(word, found, end - at, "(void)0");
                }
                if let Some((_, instead)) = ALONE.iter().find(|(name, _)| *name == word) {
                    add(word, found, from, instead);
                    if first != "FULL" {
                        let mask = from + code[from..].find(first).unwrap();
                        add(&format!("mask of {word}"), mask, mask + first.len(), "FULL");
                    }
                }
                if ATOMICS.contains(&word) {
                    add(word, found, from, &format!("torn::{word}"));
                }
            }
            at += words.len() + 1;
        }
    }
    mutants
}

/// Why the checks do not find some mutants: lines `file function what number | reason`.
fn survivors() -> BTreeMap<String, String> {
    let lines = include_str!("survivors.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, reason) = line.split_once(" | ").unwrap_or_else(|| panic!("no reason is given: {line}"));
            (name.trim().to_owned(), reason.trim().to_owned())
        })
        .collect()
}

/// The checks, with so many percent of their seeds: fewer of those that have little to do with the file.
fn checks_of(file: &str, percent: u64) -> Vec<(&'static str, Check, u64)> {
    const DRIVES: [&str; 13] = [
        "rows on drives",
        "look-ups that do without a part",
        "rings that wrap",
        "batches that end within tiles",
        "failing commands",
        "completions that come twice",
        "completions that come late",
        "many queues with little to do",
        "queues that break",
        "rows of a window",
        "bad blocks in a window",
        "parts that are lost",
        "ring tests",
    ];
    let of_drives = ["fetch.cuh", "row_reads.cuh", "row_checks.cuh", "ring.cuh", "ring_test.cuh"].contains(&file);
    let of_cache = ["cache.cuh", "cached.cuh", "cache_pin.cuh", "cache_sweep.cuh"].contains(&file);
    let is_near = |name: &str| match (file, name.starts_with("one kernel: ")) {
        ("", _) => true,
        _ if of_cache || name.starts_with("cache: ") => of_cache && name.starts_with("cache: "),
        (_, of_one_kernel) if of_one_kernel || file == "few.cuh" => of_one_kernel && file == "few.cuh",
        _ => of_drives == DRIVES.contains(&name),
    };
    let (near, far): (Vec<_>, Vec<_>) = CHECKS.into_iter().partition(|(name, ..)| is_near(name));
    let near = near.into_iter().map(|(name, check, seeds)| (name, check, (seeds * percent).div_ceil(100)));
    near.chain(far.into_iter().map(|(name, check, seeds)| (name, check, (seeds * percent).div_ceil(1000)))).collect()
}

/// Runs the checks on one mutant until one of them finds it.
#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child() {
    let number = |name: &str| env::var(name).ok().and_then(|number| number.parse::<usize>().ok());
    let (Ok(choice), Some(compiler)) = (env::var(CHOICE), compiler()) else { return };
    let sources = sources(&[]);
    let mutants = mutants(&sources);
    let (file, sources) = match mutants.iter().find(|mutant| mutant.name() == choice) {
        Some(mutant) => (mutant.file.as_str(), mutant.apply(sources)),
        None if choice == NOTHING => ("", sources),
        None => panic!("the sources have no {choice:?} any more"),
    };
    let mut shim = Shim::of(compiler, &sources, LIMIT);
    let say = |words: &str| {
        println!("\n{words}");
        std::io::stdout().flush().unwrap();
    };
    say("built");
    let checks = checks_of(file, number(PERCENT).unwrap_or(1) as u64);
    let most = checks.iter().map(|(.., seeds)| *seeds).max().unwrap_or(0);
    for seed in 0..most {
        for (name, check, _) in checks.iter().filter(|(.., seeds)| seed < *seeds) {
            say(&format!("tried: {name}, seed {seed}"));
            if let Err(wrong) = check(&mut shim, seed) {
                say(&format!("found: {wrong}"));
                process::exit(10);
            }
        }
    }
    say("survived");
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// By this check and seed, and how it showed.
    Found(String, String),
    Survived,
    /// The mutant does not build: a mistake in this test.
    Broken(String),
}

fn attempt(name: &str, percent: u64) -> Verdict {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["mutants::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(CHOICE, name).env(PERCENT, percent.to_string()).env("RUST_BACKTRACE", "0");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut err = child.stderr.take().unwrap();
    let out = std::thread::spawn(move || read_all(&mut out));
    let err = std::thread::spawn(move || read_all(&mut err));
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if began.elapsed() > HANGS => {
                let _ = child.kill();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let said = out.join().unwrap();
    let complained = err.join().unwrap();
    let last = |prefix: &str| said.lines().rev().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned);
    if !said.lines().any(|line| line == "built") {
        return Verdict::Broken(complained);
    }
    if said.lines().any(|line| line == "survived") {
        return Verdict::Survived;
    }
    let complaint = complained.lines().find(|line| !line.is_empty() && !line.starts_with("thread")).unwrap_or_default();
    let how = last("found: ").unwrap_or_else(|| match status {
        Some(status) => format!("{status}: {}", complaint.trim()),
        None => "it does not end".to_owned(),
    });
    Verdict::Found(last("tried: ").unwrap_or_default(), how)
}

fn read_all(from: &mut impl Read) -> String {
    let mut text = Vec::new();
    let _ = from.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Tries these, two at a time.
fn attempt_all(
    mutants: &[Mutant],
    choices: &[(usize, u64)],
    mut said: impl FnMut(usize, &Verdict) + Send,
) -> Vec<(usize, Verdict)> {
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new((Vec::new(), &mut said));
    let work = || {
        while let Some(&(choice, percent)) = choices.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = attempt(&mutants[choice].name(), percent);
            let mut verdicts = verdicts.lock().unwrap();
            (verdicts.1)(choice, &verdict);
            verdicts.0.push((choice, verdict));
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let mut verdicts = verdicts.into_inner().unwrap().0;
    verdicts.sort_by_key(|(choice, _)| *choice);
    verdicts
}

/// The mutants whose verdict is not what `survivors.txt` says.
fn surprises(mutants: &[Mutant], verdicts: &[(usize, Verdict)]) -> Vec<String> {
    let survivors = survivors();
    let surprise = |(choice, verdict): &(usize, Verdict)| {
        let mutant = &mutants[*choice];
        let name = mutants[*choice].name();
        match (verdict, survivors.contains_key(&name)) {
            (Verdict::Survived, false) => Some(format!("{name} (line {}) is not found", mutant.line)),
            (Verdict::Found(..), true) => Some(format!("{name} is found now: take it out of survivors.txt")),
            (Verdict::Broken(why), _) => Some(format!("{name} does not build: {why}")),
            _ => None,
        }
    };
    verdicts.iter().filter_map(surprise).collect()
}

#[test]
fn survivors_are_in_the_sources() {
    let mutants = mutants(&sources(&[]));
    let names: Vec<String> = mutants.iter().map(Mutant::name).collect();
    for (name, reason) in survivors() {
        assert!(
            names.contains(&name),
            "survivors.txt has {name:?}, which the sources do not have; they have {names:#?}"
        );
        assert!(reason.len() > 20, "{name}: {reason:?} is no reason");
    }
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "a name stands for two places");
    for word in REMOVED.iter().chain(ALONE.iter().map(|(word, _)| word)).chain(&ATOMICS) {
        // Where each is used at all, and none is left out.
        let count = |text: &str| {
            text.lines()
                .map(|line| line.split("//").next().unwrap_or_default().matches(&format!("{word}(")).count())
                .sum::<usize>()
        };
        let all: usize = sources(&[])
            .iter()
            .filter(|(name, _)| name.ends_with(".cuh") && name != "order.cuh")
            .map(|(_, text)| count(text))
            .sum();
        let found = mutants.iter().filter(|mutant| mutant.what.starts_with(&format!("{word} "))).count();
        assert_eq!(found, all, "{word}");
    }
    assert!(mutants.iter().all(|mutant| !mutant.function.is_empty()) && mutants.len() > 70, "{}", mutants.len());
}

/// A few of those that are to be found, and one that is not.
#[test]
fn a_sample_is_found() {
    if compiler().is_none() {
        return eprintln!("skipped: mutants need a C++ compiler (c++, g++, clang++ or $CXX)");
    }
    const SAMPLE: usize = 6;
    let mutants = mutants(&sources(&[]));
    let survivors = survivors();
    let seed = env::var("WARPROW_MUTANTS").ok().and_then(|seed| seed.parse().ok()).unwrap_or(6);
    let mut order: Vec<usize> = (0..mutants.len()).collect();
    Rng::with_seed(seed).shuffle(&mut order);
    let (listed, others): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|&choice| survivors.contains_key(&mutants[choice].name()));
    let choices: Vec<(usize, u64)> = others
        .into_iter()
        .take(SAMPLE)
        .map(|number| (number, 100))
        .chain(listed.into_iter().take(1).map(|number| (number, 2)))
        .collect();
    let verdicts =
        attempt_all(&mutants, &choices, |choice, verdict| eprintln!("{}: {verdict:?}", mutants[choice].name()));
    let surprises = surprises(&mutants, &verdicts);
    assert!(surprises.is_empty(), "WARPROW_MUTANTS={seed}: {surprises:#?}");
}

/// Every mutant, and a table of what became of it.
#[test]
#[ignore = "some minutes"]
fn all() {
    if compiler().is_none() {
        return eprintln!("skipped: mutants need a C++ compiler (c++, g++, clang++ or $CXX)");
    }
    let mutants = mutants(&sources(&[]));
    let survivors = survivors();
    let wanted = env::var("WARPROW_ONLY").unwrap_or_default();
    let number = |name: &str, usual| env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(usual);
    let percent = number("WARPROW_PERCENT", 100);
    let chosen =
        (0..mutants.len()).filter(|&choice| wanted.split(',').any(|wanted| mutants[choice].name().contains(wanted)));
    let choices: Vec<(usize, u64)> = chosen
        .map(|choice| (choice, if survivors.contains_key(&mutants[choice].name()) { percent.min(25) } else { percent }))
        .collect();
    let began = Instant::now();
    // What the checks find where nothing is missing, they would "find" in every mutant.
    assert_eq!(attempt(NOTHING, percent), Verdict::Survived, "a check fails without any mutant");
    let verdicts = attempt_all(&mutants, &choices, |choice, verdict| {
        let verdict = match verdict {
            Verdict::Found(by, how) => format!("found by {by}: {how}"),
            other => format!("{other:?}"),
        };
        eprintln!(
            "{:.0} s, {} (line {}): {verdict}",
            began.elapsed().as_secs_f64(),
            mutants[choice].name(),
            mutants[choice].line
        );
    });
    let mut kinds = BTreeMap::<String, [u32; 3]>::new();
    for (choice, verdict) in &verdicts {
        let mutant = &mutants[*choice];
        let kind = mutant.what.rsplit_once(' ').map_or("", |(kind, _)| kind);
        let counts = kinds.entry(kind.to_owned()).or_default();
        let column = match verdict {
            Verdict::Found(..) => 0,
            _ if survivors.contains_key(&mutant.name()) => 1,
            _ => 2,
        };
        counts[column] += 1;
    }
    println!("\n| missing | mutants | found | listed as beyond it | not found |\n|---|---|---|---|---|");
    for (kind, [found, listed, missed]) in &kinds {
        println!("| `{kind}` | {} | {found} | {listed} | {missed} |", found + listed + missed);
    }
    let surprises = surprises(&mutants, &verdicts);
    assert!(surprises.is_empty(), "{surprises:#?}");
}
