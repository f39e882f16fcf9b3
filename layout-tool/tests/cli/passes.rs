//! Passes by the command: rows are staged to a file, changed by whoever can write safetensors, and brought back.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fastrand::Rng;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::fixture::CliFixture;

const ROWS: u64 = 3000;
const DIM: usize = 6;
const TABLE: &str = "items";

/// A table, and what its rows should be.
struct Trained {
    fixture: CliFixture,
    drive: String,
    keyed: bool,
    rows: BTreeMap<i64, Vec<f32>>,
}

fn npy_of_keys(keys: &[i64]) -> Vec<u8> {
    let mut bytes = warprow_formats::npy::head_of_list("<i8", keys.len() as u64);
    bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
    bytes
}

/// A tensor: its type, shape and bytes.
type Tensor = (Dtype, Vec<usize>, Vec<u8>);
/// The tensors of a file.
type Tensors = HashMap<String, Tensor>;

/// All tensors of a file, as a trainer reads them: without metadata.
fn read(path: &std::path::Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let owned =
        |(name, view): (String, TensorView<'_>)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    tensors.tensors().into_iter().map(owned).collect()
}

/// Writes them, as a trainer does.
fn write(path: &std::path::Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn keys_in(tensors: &Tensors) -> Vec<i64> {
    tensors["items.keys"].2.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
}

impl Trained {
    fn new(keyed: bool, options: &[&str], size: &str) -> Self {
        let fixture = CliFixture::new();
        let drive = fixture.drive("a.drive", size);
        let key = |row: u64| if keyed { (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64) ^ -7 } else { row as i64 };
        let file = fixture.npy("items.npy", ROWS, DIM as u64, |r, c| (r * 8 + c) as f32);
        let mut load = vec!["load", "-d", &drive, &file];
        if keyed {
            let keys: Vec<i64> = (0..ROWS).map(key).collect();
            fs::write(fixture.path("k.npy"), npy_of_keys(&keys)).unwrap();
            load.extend(["--keys", "k.npy"]);
        }
        load.extend(options);
        fixture.ok(&load);
        let row = |r: u64| (0..DIM as u64).map(|c| (r * 8 + c) as f32).collect();
        let rows = (0..ROWS).map(|r| (key(r), row(r))).collect();
        Self { fixture, drive, keyed, rows }
    }

    fn keyset(&self, name: &str, keys: &[i64]) -> String {
        fs::write(self.fixture.path(name), npy_of_keys(keys)).unwrap();
        name.to_owned()
    }

    fn begin_args<'a>(&'a self, keys: &'a str, out: &'a str) -> Vec<&'a str> {
        vec!["pass", "begin", "-d", &self.drive, "--table", TABLE, "--keys", keys, "--out", out]
    }

    fn commit_args<'a>(&'a self, rows: &'a str) -> Vec<&'a str> {
        vec!["pass", "commit", "-d", &self.drive, "--table", TABLE, "--rows", rows]
    }

    fn begin(&self, keys: &[i64], out: &str) -> serde_json::Value {
        let keys = self.keyset("keys.npy", keys);
        self.fixture.ok(&[&self.begin_args(&keys, out)[..], &["--force"]].concat())
    }

    /// Trains the rows of a file: each becomes a function of its key and the pass.
    fn train(&self, file: &str, pass: u32) -> BTreeMap<i64, Vec<f32>> {
        let path = self.fixture.path(file);
        let mut tensors = read(&path);
        let keys = keys_in(&tensors);
        let (_, shape, bytes) = tensors.get_mut(TABLE).unwrap();
        assert_eq!(*shape, [keys.len(), DIM]);
        let rows = floats(bytes);
        let mut trained = BTreeMap::new();
        for (key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
            assert_eq!(row, self.rows[key], "key {key} was staged with another row");
            trained.insert(*key, row.iter().map(|x| x / 2.0 + pass as f32 + (*key % 1000) as f32).collect::<Vec<_>>());
        }
        *bytes = keys.iter().flat_map(|key| trained[key].iter().flat_map(|x| x.to_le_bytes())).collect();
        write(&path, &tensors);
        trained
    }

    /// What the table has.
    fn content(&self) -> BTreeMap<i64, Vec<f32>> {
        let out = ["export", "-d", &self.drive, "--table", TABLE, "--out", "all.safetensors", "--force"];
        let keys_out: &[&str] = if self.keyed { &["--keys-out", "all.npy"] } else { &[] };
        self.fixture.ok(&[&out[..], keys_out].concat());
        let rows = floats(&read(&self.fixture.path("all.safetensors"))[TABLE].2);
        let keys: Vec<i64> = match self.keyed {
            false => (0..rows.len() as i64 / DIM as i64).collect(),
            true => {
                let bytes = fs::read(self.fixture.path("all.npy")).unwrap();
                let keys = &bytes[bytes.len() - rows.len() / DIM * 8..];
                keys.as_chunks().0.iter().map(|&key| i64::from_le_bytes(key)).collect()
            }
        };
        keys.into_iter().zip(rows.chunks_exact(DIM).map(<[f32]>::to_vec)).collect()
    }

    fn assert_content(&self, what: &str) {
        assert!(self.content() == self.rows, "{what}: the table is not as it should be");
    }

    /// Every third key, in an order of its own.
    fn some_keys(&self, seed: u64) -> Vec<i64> {
        let mut keys: Vec<i64> = self.rows.keys().copied().skip(seed as usize % 3).step_by(3).collect();
        Rng::with_seed(seed).shuffle(&mut keys);
        keys
    }

    /// Says that `args` fail with that exit code, say these words, and leave the table as it is.
    fn refuses(&self, args: &[&str], exit: i32, words: &str) {
        let error = self.fixture.fails(args, exit);
        let said = format!("{} {} {}", error["subject"], error["message"], error["remedy"]);
        assert!(said.contains(words), "{args:?} does not say {words:?}: {error}");
        assert!(!error["remedy"].as_str().unwrap().is_empty() || exit == 8, "{args:?}: no remedy in {error}");
        self.assert_content(&format!("{args:?}"));
    }
}

#[test]
fn rows_go_to_a_file_and_come_back() {
    let counts = "hot.u32";
    for (keyed, options) in
        [(true, &["--row-crc"][..]), (true, &[]), (false, &["--row-crc", "--hotness", counts]), (false, &[])]
    {
        println!("keyed: {keyed}, {options:?}");
        let mut table = {
            // A table whose ranks are not its ids.
            let prepared = |fixture: &CliFixture| {
                let hot: Vec<u8> = (0..ROWS as u32).flat_map(|r| (r * 7919 % ROWS as u32).to_le_bytes()).collect();
                fs::write(fixture.path(counts), hot).unwrap();
            };
            let fixture = CliFixture::new();
            prepared(&fixture);
            let counts_path = fixture.path(counts).display().to_string();
            let options: Vec<&str> =
                options.iter().map(|&option| if option == counts { &*counts_path } else { option }).collect();
            Trained::new(keyed, &options, "64M")
        };
        let checked = options.contains(&"--row-crc");
        for pass in 1..=3u32 {
            let mut keys = table.some_keys(pass.into());
            let different = keys.len();
            keys.extend_from_within(..100);
            let done = table.begin(&keys, "rows.safetensors");
            assert_eq!(
                (&done["rows"], &done["duplicates"], &done["checked"], &done["dim"]),
                (&different.into(), &100.into(), &checked.into(), &DIM.into())
            );
            let staged = read(&table.fixture.path("rows.safetensors"));
            assert_eq!(keys_in(&staged), keys[..different], "the keys are in the order of the keyset");
            let trained = table.train("rows.safetensors", pass);
            // What others change beside the pass does not matter.
            let other = *table.rows.keys().find(|key| !trained.contains_key(key)).unwrap();
            let new = table.fixture.npy("one.npy", 1, DIM as u64, |_, c| -(f32::from(pass as u8) * 10.0 + c as f32));
            let ids = format!("--ids={other}");
            table.fixture.ok(&["update", TABLE, "-d", &table.drive, "--rows", &new, &ids]);
            table.rows.insert(other, (0..DIM).map(|c| -(f32::from(pass as u8) * 10.0 + c as f32)).collect());
            table.assert_content("before the commit");

            let commit = [&table.commit_args("rows.safetensors")[..], &["--journal", "journal"]].concat();
            let done = table.fixture.ok(&commit);
            assert_eq!((&done["rows"], &done["pass"]), (&different.into(), &pass.into()));
            assert_eq!((&done["staged_from"]["table"], &done["unchanged"]), (&TABLE.into(), &0.into()));
            table.rows.extend(trained);
            table.assert_content("after the commit");
            // Once more does no harm.
            let again = table.fixture.ok(&table.commit_args("rows.safetensors"));
            assert_eq!((&again["rows"], &again["unchanged"]), (&different.into(), &different.into()));
            table.assert_content("after it was done twice");
        }
        table.fixture.ok(&["verify", "-d", &table.drive]);
        // The journal has what passes changed, whichever way they came.
        let delta = table.fixture.ok(&[
            "incremental",
            "-d",
            &table.drive,
            "--table",
            TABLE,
            "--journal",
            "journal",
            "--since",
            "2",
            "--out",
            "delta.safetensors",
        ]);
        assert_eq!((&delta["rows"], &delta["last_pass"]), (&table.some_keys(3).len().into(), &3.into()));
        let delta = read(&table.fixture.path("delta.safetensors"));
        for (key, row) in keys_in(&delta).into_iter().zip(floats(&delta[TABLE].2).chunks_exact(DIM)) {
            assert_eq!(row, table.rows[&key]);
        }
    }
}

#[test]
fn what_is_stale_or_foreign_is_refused_by_name() {
    let mut table = Trained::new(true, &["--row-crc"], "64M");
    let keys = table.some_keys(1);
    table.begin(&keys, "first.safetensors");
    table.begin(&keys, "second.safetensors");
    table.begin(&table.some_keys(2), "apart.safetensors");
    let first = table.train("first.safetensors", 1);
    let second = table.train("second.safetensors", 2);
    let apart = table.train("apart.safetensors", 3);
    table.fixture.ok(&table.commit_args("first.safetensors"));
    table.rows.extend(first.clone());
    table.assert_content("the first pass");
    // Another pass over the same rows was first.
    table.refuses(&table.commit_args("second.safetensors"), 4, "others changed 1000 of its 1000 rows");
    // One over others was not.
    table.fixture.ok(&table.commit_args("apart.safetensors"));
    table.rows.extend(apart);
    table.assert_content("a pass beside");
    table.fixture.ok(&[&table.commit_args("second.safetensors")[..], &["--allow-stale"]].concat());
    table.rows.extend(second);
    table.assert_content("stale rows that are wanted");

    // One row that somebody updated.
    table.begin(&keys, "rows.safetensors");
    let trained = table.train("rows.safetensors", 4);
    let new = table.fixture.npy("one.npy", 1, DIM as u64, |_, c| c as f32);
    let ids = format!("--ids={}", keys[17]);
    table.fixture.ok(&["update", TABLE, "-d", &table.drive, "--rows", &new, &ids]);
    table.rows.insert(keys[17], (0..DIM).map(|c| c as f32).collect());
    table.refuses(&table.commit_args("rows.safetensors"), 4, &format!("others changed 1 of its 1000 rows of table \\\"items\\\" since they were staged, such as those of the keys {}", keys[17]));

    // Without what says where rows come from; and where that is said apart.
    table.begin(&keys, "staged.safetensors");
    fs::copy(table.fixture.path("staged.safetensors"), table.fixture.path("bare.safetensors")).unwrap();
    let mut bare = read(&table.fixture.path("bare.safetensors"));
    bare.retain(|name, _| name == TABLE || name == "items.keys");
    // Half of the rows, in another order.
    let mut order: Vec<usize> = (0..keys.len() / 2).collect();
    Rng::with_seed(3).shuffle(&mut order);
    let some = |width: usize, bytes: &[u8]| {
        order.iter().flat_map(|at| bytes[at * width..][..width].to_vec()).collect::<Vec<u8>>()
    };
    for (name, width) in [(TABLE, DIM * 4), ("items.keys", 8)] {
        let (_, shape, bytes) = bare.get_mut(name).unwrap();
        shape[0] = order.len();
        *bytes = some(width, bytes);
    }
    write(&table.fixture.path("bare.safetensors"), &bare);
    let half = table.train("bare.safetensors", 5);
    table.refuses(&table.commit_args("bare.safetensors"), 4, "items.pass");
    let with = [&table.commit_args("bare.safetensors")[..], &["--staged", "staged.safetensors"]].concat();
    table.fixture.ok(&with);
    table.rows.extend(half);
    table.assert_content("half of the rows");
    table.refuses(
        &[&table.commit_args("rows.safetensors")[..], &["--staged", "staged.safetensors"]].concat(),
        4,
        "stale",
    );

    // Another store, and the table loaded anew.
    let other = Trained::new(true, &["--row-crc"], "64M");
    let stranger = table.fixture.path("rows.safetensors").display().to_string();
    other.refuses(&other.commit_args(&stranger), 4, "was staged from the store");
    other.fixture.ok(&[&other.commit_args(&stranger)[..], &["--allow-foreign"]].concat());
    assert!(other.content() == other.rows.clone().into_iter().chain(trained).collect());
    let file = table.fixture.path("items.npy").display().to_string();
    table.fixture.ok(&["load", "-d", &table.drive, &file, "--keys", "k.npy", "--row-crc", "--replace"]);
    table.rows = other.rows.clone();
    table.refuses(&table.commit_args("staged.safetensors"), 4, "was written anew since");
}

#[test]
fn files_that_are_not_this_tables_are_refused() {
    let table = Trained::new(true, &["--row-crc"], "64M");
    let file = table.fixture.path("items.npy").display().to_string();
    table.fixture.ok(&["load", "-d", &table.drive, &file, "--tensor", "others=*"]);
    let keys = table.some_keys(1);
    table.begin(&keys, "rows.safetensors");
    let good = read(&table.fixture.path("rows.safetensors"));
    let spoilt = |spoil: &dyn Fn(&mut Tensors)| {
        let mut tensors = good.clone();
        spoil(&mut tensors);
        write(&table.fixture.path("bad.safetensors"), &tensors);
        table.commit_args("bad.safetensors")
    };
    let of_table = |change: &dyn Fn(&mut Tensor)| spoilt(&|all| change(all.get_mut(TABLE).unwrap()));
    let args = of_table(&|rows| rows.0 = Dtype::I32);
    table.refuses(&args, 3, "its rows are I32, those of table \\\"items\\\" f32");
    let args = of_table(&|rows| (rows.0, rows.1) = (Dtype::F16, vec![1000, 12]));
    table.refuses(&args, 3, "its rows are F16");
    let args = of_table(&|rows| rows.1 = vec![2000, 3]);
    table.refuses(&args, 3, "have 6 elements each");
    let args = of_table(&|rows| rows.1 = vec![6000]);
    table.refuses(&args, 3, "have 6 elements each");
    let args = of_table(&|rows| (rows.1[0], rows.2) = (999, rows.2[24..].to_vec()));
    table.refuses(&args, 3, "1000 keys for 999 rows");
    let key = |at: usize, key: i64| {
        spoilt(&|all| all.get_mut("items.keys").unwrap().2[at * 8..][..8].copy_from_slice(&key.to_le_bytes()))
    };
    table.refuses(&key(5, 12345), 3, "12345");
    table.refuses(&key(5, keys[7]), 3, &format!("the key {} of row 7 came before", keys[7]));
    table.refuses(&spoilt(&|all| drop(all.remove("items.keys"))), 3, "no tensor \\\"items.keys\\\"");
    table.refuses(&spoilt(&|all| drop(all.remove(TABLE))), 3, "no tensor \\\"items\\\"");
    table.refuses(&spoilt(&|all| all.get_mut("items.pass").unwrap().2[3] ^= 1), 3, "damaged note");
    // Checksums of another type or shape, or of none that there is, though nothing was written since that they would be asked for.
    let of_checksums = |change: &dyn Fn(&mut Tensor)| spoilt(&|all| change(all.get_mut("items.checksums").unwrap()));
    table.refuses(&of_checksums(&|tensor| tensor.0 = Dtype::I32), 3, "it has I32 of the shape [1000] as checksums");
    table.refuses(&of_checksums(&|tensor| tensor.1 = vec![10, 100]), 3, "as checksums of 1000 staged rows");
    let mut damaged = fs::read(table.fixture.path("rows.safetensors")).unwrap();
    let at = damaged.windows(3).position(|window| window == b"U32").unwrap();
    damaged[at + 2] ^= 1;
    fs::write(table.fixture.path("bad.safetensors"), damaged).unwrap();
    for allow in [&[][..], &["--allow-stale"], &["--allow-foreign"]] {
        table.refuses(&[&table.commit_args("bad.safetensors")[..], allow].concat(), 3, "it has U33 of the shape");
    }
    table.fixture.ok(&["compact", "-d", &table.drive]);
    for table_name in ["others", "absent"] {
        let args = ["pass", "commit", "-d", &table.drive, "--table", table_name, "--rows", "rows.safetensors"];
        table.refuses(&args, 3, table_name);
    }
    // Cut off anywhere.
    let whole = fs::read(table.fixture.path("rows.safetensors")).unwrap();
    for cut in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(table.fixture.path("bad.safetensors"), &whole[..cut]).unwrap();
        table.refuses(&table.commit_args("bad.safetensors"), 3, "bad.safetensors");
    }
    table.refuses(&table.commit_args("absent.safetensors"), 3, "absent.safetensors");
    table.refuses(&table.commit_args("items.npy"), 3, "items.npy");
    table.refuses(
        &[&table.commit_args("rows.safetensors")[..], &["--journal", "rows.safetensors"]].concat(),
        2,
        "--rows",
    );
    let strange = [&table.commit_args("rows.safetensors")[..], &["--journal", "k.npy"]].concat();
    assert!(table.fixture.fails(&strange, 3)["message"].as_str().unwrap().contains("no journal"));

    // Keys that cannot be staged.
    let unknown = table.keyset("unknown.npy", &[keys[0], 12345, 12346]);
    table.refuses(&table.begin_args(&unknown, "x.safetensors"), 3, "2 keys of the pass are not in table");
    table.refuses(&table.begin_args("absent.npy", "x.safetensors"), 3, "absent.npy");
    table.refuses(&table.begin_args("keys.npy", "x.npy"), 2, "safetensors");
    table.refuses(&table.begin_args("keys.npy", "keys.npy"), 2, "--keys");
    table.refuses(&table.begin_args("keys.npy", "rows.safetensors"), 4, "exists");
    assert!(!table.fixture.path("x.safetensors").exists());

    // None at all.
    let done = table.begin(&[], "none.safetensors");
    assert_eq!((&done["rows"], &done["bytes"]), (&0.into(), &0.into()));
    let done = table.fixture.ok(&[&table.commit_args("none.safetensors")[..], &["--journal", "journal"]].concat());
    assert_eq!((&done["rows"], &done["chunks"]), (&0.into(), &0.into()));
    table.assert_content("an empty pass");

    // Keys that lie beside the table.
    let new = table.fixture.npy("new.npy", 1, DIM as u64, |_, c| c as f32);
    table.fixture.ok(&["update", TABLE, "-d", &table.drive, "--rows", &new, "--ids", "999", "--create"]);
    for args in [table.begin_args("keys.npy", "x.safetensors"), table.commit_args("rows.safetensors")] {
        assert!(table.fixture.fails(&args, 4)["remedy"].as_str().unwrap().contains("warprow compact"));
    }
}

#[test]
fn a_damaged_row_is_not_staged() {
    let table = Trained::new(true, &["--row-crc"], "64M");
    let keys = table.some_keys(1);
    // A row's bytes, wherever they lie on the drive.
    let path = table.fixture.path("a.drive");
    let mut drive = fs::read(&path).unwrap();
    let row: Vec<u8> = table.rows[&keys[3]].iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = drive.windows(row.len()).position(|bytes| bytes == row).unwrap();
    drive[at] ^= 1;
    fs::write(&path, drive).unwrap();
    let set = table.keyset("keys.npy", &keys);
    let error = table.fixture.fails(&table.begin_args(&set, "rows.safetensors"), 6);
    assert!(error["message"].as_str().unwrap().contains("checksum"), "{error}");
    assert!(!table.fixture.path("rows.safetensors").exists());
    // Others are.
    table.begin(&keys[4..], "rows.safetensors");
}

#[test]
fn a_full_store_changes_nothing_and_notes_nothing() {
    let table = Trained::new(true, &[], "24M");
    table.begin(&table.some_keys(1), "rows.safetensors");
    table.train("rows.safetensors", 1);
    // What is left is taken by another table.
    let mut rows = 1 << 18;
    while rows > 64 {
        let big = table.fixture.npy("big.npy", rows, 16, |_, _| 1.0);
        let name = format!("big{rows}=*");
        let (_, exit) =
            table.fixture.json(&["load", "-d", &table.drive, &big, "--tensor", &name, "--model", &format!("m{rows}")]);
        if exit != 0 {
            rows /= 2;
        }
        if table.fixture.ok(&["inspect", "-d", &table.drive])["free_bytes"] == 0 {
            break;
        }
        rows = rows.min(1 << 17);
        if exit == 0 {
            rows /= 2;
        }
    }
    let commit = [&table.commit_args("rows.safetensors")[..], &["--journal", "journal"]].concat();
    table.refuses(&commit, 8, "free");
    let head = fs::read(table.fixture.path("journal")).unwrap();
    table.refuses(&commit, 8, "free");
    assert_eq!(
        fs::read(table.fixture.path("journal")).unwrap(),
        head,
        "a pass that did not come about is in the journal"
    );
}

/// The process is killed at any time: the file is whole or not there, the table is that of a whole pass, and the same command goes on.
#[test]
fn a_kill_leaves_a_whole_pass() {
    let seed = std::env::var("WARPROW_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("seed {seed} (WARPROW_SEED)");
    let mut random = Rng::with_seed(seed);
    let mut table = Trained::new(true, &["--row-crc"], "64M");
    let mut before = 0;
    let mut after = 0;
    let mut unborn = 0;
    for pass in 1..=12u32 {
        let keys = table.keyset("keys.npy", &table.some_keys(pass.into()));
        let out = format!("rows{pass}.safetensors");
        let path = table.fixture.path(&out);
        let begin: Vec<&str> = table.begin_args(&keys, &out);
        // How long it takes when nobody disturbs it.
        let began = Instant::now();
        let undisturbed = table.fixture.path("undisturbed.safetensors").display().to_string();
        table.fixture.ok(&[&table.begin_args(&keys, &undisturbed)[..], &["--force"]].concat());
        let takes = began.elapsed();
        kill_within(&table.fixture, &begin, takes, &mut random);
        match path.exists() {
            true => drop(read(&path)),
            false => {
                unborn += 1;
                table.fixture.ok(&begin);
            }
        }
        table.assert_content("after a begin that was killed");
        let trained = table.train(&out, pass);
        let commit = [&table.commit_args(&out)[..], &["--journal", "journal"]].concat();
        kill_within(&table.fixture, &commit, takes.mul_f64(1.3), &mut random);
        let found = table.content();
        let mut whole = table.rows.clone();
        whole.extend(trained);
        match found == whole {
            true => after += 1,
            false => {
                assert!(found == table.rows, "seed {seed}, pass {pass}: neither before nor after the pass");
                before += 1;
            }
        }
        table.fixture.ok(&commit);
        table.rows = whole;
        table.assert_content("after the commit was repeated");
        table.fixture.ok(&["verify", "-d", &table.drive]);
    }
    println!("{unborn} begins without a file; {before} commits left the pass before, {after} the new one");
    // Whatever was killed, no key of a pass is missing from the journal.
    let delta =
        ["incremental", "-d", &table.drive, "--table", TABLE, "--journal", "journal", "--out", "delta.safetensors"];
    assert_eq!(table.fixture.ok(&delta)["rows"], ROWS);
}

fn kill_within(fixture: &CliFixture, args: &[&str], time: Duration, random: &mut Rng) {
    let mut child = fixture.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(time.mul_f64(random.f64()));
    // One that has ended already is as good.
    let _ = child.kill();
    child.wait().unwrap();
}

/// The example of the documentation, where Python has what it needs: the table is what the same training in memory comes to.
#[test]
fn the_example_trains_a_table() {
    let has = |python: &str| {
        let run = std::process::Command::new(python)
            .args(["-c", "import numpy, safetensors.numpy"])
            .stderr(Stdio::null())
            .status();
        run.is_ok_and(|status| status.success())
    };
    let named = std::env::var("WARPROW_PYTHON").ok();
    let Some(python) = named.into_iter().chain(["python3".to_owned()]).find(|text| has(text)) else {
        println!("left out: there is no Python with numpy and safetensors (WARPROW_PYTHON names one)");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../passes/examples/train.py");
    let run =
        std::process::Command::new(python).args([script, "--warprow", env!("CARGO_BIN_EXE_warprow")]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("bit for bit"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn the_help_teaches_with_a_session() {
    let fixture = CliFixture::new();
    for args in [&["pass", "--help"][..], &["pass", "begin", "--help"], &["pass", "commit", "--help"]] {
        let run = fixture.run(args);
        assert_eq!(run.exit, 0);
        assert!(
            run.stdout.contains("warprow pass commit") || run.stdout.contains("warprow pass begin"),
            "{}",
            run.stdout
        );
        assert!(run.stdout.contains("Exit codes:"), "{args:?}");
    }
    assert!(fixture.run(&["pass", "--help"]).stdout.contains("safetensors.numpy.load_file"));
}
