//! A trainer that is killed while it stages, prepares ahead, takes back or commits: the table is that of a whole pass, the last that was
//! durable or the one under way, and passes go on from there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use warprow_keys::IndexOptions as KeyOptions;
use warprow_layout::FormatOptions;
use warprow_passes::{CacheOptions, Keyset, PassOptions, Passes};
use warprow_store::{
    CreateDrive, DType, Device, KeyIndex, LoadOptions, OpenOptions, RowOrder, Store, TableKeys, TableLoad, TableSpec,
};

type Model = BTreeMap<u64, Vec<u8>>;

const NAME: &str = "items";
const ROWS: u64 = 3000;
const DIM: u32 = 100;
const ROW: usize = DIM as usize * 4;
/// What a trainer says before it begins with each, and when a pass is durable.
const STEPS: [&str; 4] = ["stage", "prefetch", "finish", "durable"];
/// Where a child finds what it is to do.
const VARIABLE: &str = "WARPROW_KILLED_TRAINER";

#[derive(Clone, Copy, Debug)]
enum Way {
    Staged,
    StagedBehind,
    CachedBehind,
    Creating,
}

const WAYS: [Way; 4] = [Way::Staged, Way::StagedBehind, Way::CachedBehind, Way::Creating];

impl Way {
    fn options(self) -> PassOptions {
        let cache = CacheOptions { num_blocks: 1, target_hit_rate: 0.9, max_num_evict: 9 };
        match self {
            Self::Staged => PassOptions::staged(8 << 20),
            Self::StagedBehind => PassOptions::staged(8 << 20).with_behind(),
            Self::CachedBehind => PassOptions::cached(2500 * ROW as u64, cache).with_behind(),
            Self::Creating => PassOptions::staged(8 << 20).with_new_keys(|key, row| fill(key, 0, row)),
        }
    }

    /// Passes that `finish` has taken back and that may not be durable when the next has been.
    fn behind(self) -> u64 {
        u64::from(matches!(self, Self::StagedBehind | Self::CachedBehind))
    }
}

fn fill(key: u64, pass: u64, row: &mut [u8]) {
    Rng::with_seed(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pass).fill(row);
}

fn row(key: u64, pass: u64) -> Vec<u8> {
    let mut row = vec![0; ROW];
    fill(key, pass, &mut row);
    row
}

fn key(number: u64) -> u64 {
    number * 1_000_003 + 5
}

/// The keys of a pass, from 1 on.
fn keys(way: Way, pass: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(pass);
    let mut keys: Vec<u64> = (0..ROWS).filter(|_| random.u8(..3) == 0).map(key).collect();
    if matches!(way, Way::Creating) {
        keys.push(key(ROWS + pass));
    }
    keys
}

/// What the table is after so many passes.
fn model(way: Way, passes: u64) -> Model {
    let mut last: BTreeMap<u64, u64> = (0..ROWS).map(|number| (key(number), 0)).collect();
    (1..=passes).for_each(|pass| last.extend(keys(way, pass).into_iter().map(|key| (key, pass))));
    last.into_iter().map(|(key, pass)| (key, row(key, pass))).collect()
}

fn open(path: &Path) -> Device {
    Device::open(&format!("emulated:{}?size=48M", path.display()).parse().unwrap(), CreateDrive::IfMissing).unwrap()
}

fn load(path: &Path) {
    let format = FormatOptions { chunk_size: Some(1 << 20), ..FormatOptions::default() };
    let store = Store::create(&[open(path)], &format, &OpenOptions::default()).unwrap();
    let keys: Vec<u64> = (0..ROWS).map(key).collect();
    let source = &keys[..];
    let go_on = &mut |_| ControlFlow::Continue(());
    let index = Arc::new(KeyIndex::build(source, &KeyOptions::default().with_threads(1), go_on).unwrap());
    let keyed = TableKeys::new(index, &source, RowOrder::Positions, true).unwrap();
    let mut spec = TableSpec::new(NAME, ROWS, DIM, DType::F32).keyed(&keyed);
    spec.row_crc = true;
    let rows: Vec<u8> = keys.iter().flat_map(|&key| row(key, 0)).collect();
    let rows = &rows[..];
    let load = TableLoad::new(&spec, &rows).with_keys(&keyed);
    store.load("model", &[load], &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
}

/// What is durable: the pass that it is of.
fn survived(path: &Path, way: Way, passes: impl Iterator<Item = u64>) -> Option<u64> {
    let store = Store::open(&[open(path)], &OpenOptions::default()).unwrap();
    let keys = store.keys(NAME).unwrap().unwrap();
    let mut found = Model::new();
    store
        .scan(NAME, 0..u64::MAX, &mut |rank, row| {
            found.insert(keys[rank as usize], row.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    let verified = store.verify(NAME, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(verified.damaged == 0 && verified.bad.is_empty(), "{verified:?}");
    let mut passes = passes;
    passes.find(|&pass| model(way, pass) == found)
}

/// Trains pass after pass, and says where it is, until it is killed: run by the test below.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn trainer() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let [way, first, path] = what.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let way: Way = WAYS[way.parse::<usize>().unwrap()];
    let first: u64 = first.parse().unwrap();
    let say = |step: &str, pass: u64| writeln!(std::io::stderr(), "{step} {pass}").unwrap();
    let store = Store::open(&[open(Path::new(path))], &OpenOptions::default()).unwrap();
    let mut passes = Passes::open(&store, NAME, way.options().with_threads(2)).unwrap();
    for number in first..first + 10_000 {
        let keyset = Keyset::new(keys(way, number));
        say("stage", number);
        let pass = passes.stage(&keyset).unwrap();
        say("prefetch", number);
        passes.prefetch(&Keyset::new(keys(way, number + 1))).unwrap();
        let rows: Vec<u8> = pass.keys().iter().flat_map(|&key| row(key, number)).collect();
        say("finish", number);
        passes.finish(pass, &rows).unwrap();
        say("durable", number.saturating_sub(way.behind()));
    }
}

/// Kills a trainer within `jitter` after it has begun with `step` of its pass number `pass`. The last pass that it said is durable.
fn killed(path: &Path, way: usize, first: u64, step: &str, pass: u64, jitter: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "trainer", "--ignored", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, format!("{way} {first} {}", path.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let mut said = Vec::new();
    let mut durable = first - 1;
    let mut note = |line: String| {
        if let Some(number) = line.strip_prefix("durable ") {
            durable = durable.max(number.parse().unwrap());
        }
        said.push(line);
    };
    let wanted = format!("{step} {pass}");
    let began = lines.by_ref().any(|line| {
        let began = line == wanted;
        note(line);
        began
    });
    std::thread::sleep(jitter);
    let alive = child.try_wait().unwrap().is_none();
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
    lines.for_each(&mut note);
    assert!(began && alive, "it ended by itself: {said:?}");
    durable
}

#[test]
fn a_killed_trainer_leaves_a_whole_pass() {
    let seed = 0x5eed;
    println!("seed {seed:#x}");
    let mut random = Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    for (nth, way) in WAYS.into_iter().enumerate() {
        let path = folder.path().join(format!("{nth}.drive"));
        load(&path);
        let mut whole = 0;
        for step in STEPS {
            let first = whole + 1;
            let pass = match step {
                // What is behind is told of later.
                "durable" => first,
                _ => first + random.u64(..2),
            };
            let jitter = Duration::from_micros(random.u64(..4000));
            let what = format!("{way:?}, {step} of pass {pass}, {jitter:?}");
            let durable = killed(&path, nth, first, step, pass, jitter);
            assert!(durable >= whole, "{what}");
            // It went on until it was killed; what it said last may have been lost with the pipe's reader, not with the pass.
            let found = survived(&path, way, durable..durable + 3 + way.behind());
            whole = found.unwrap_or_else(|| panic!("{what}: no whole pass, {durable} was durable"));
        }
    }
    println!("{:?}", began.elapsed());
}
