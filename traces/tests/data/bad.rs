//! Files that contradict themselves or what is said of them.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use proptest::prelude::*;
use warprow_traces::data::{DataFormat, DataOptions, DataReader, DataSpec, DataWriteOptions, convert};

use crate::build::{Sample, Set, fails, norm, put, raw, read};

fn set(samples: usize) -> Set {
    let sample = |at: usize| {
        let at = at as i64;
        Sample { labels: vec![1.0], dense: vec![0.5, 2.0], ids: vec![vec![at], vec![at; (at % 3) as usize]] }
    };
    Set { labels: 1, dense: 2, features: 2, samples: (0..samples).map(sample).collect() }
}

/// The bytes of the units of samples: a length, twelve bytes of floats, lists.
fn unit(at: usize) -> usize {
    4 + 12 + 4 + 8 + 4 + 8 * (at % 3) + 1
}

#[test]
fn norm_errors_name_file_sample_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let set = set(8);
    let whole = norm(&set, &set.samples, true, true);
    let file = |name: &str, bytes: &[u8]| format!("norm:{}:i64", put(dir.path(), name, bytes));
    assert_eq!(read(&file("whole", &whole), 3).unwrap(), set.samples);
    let at = |sample: usize| 69 + (0..sample).map(unit).sum::<usize>();
    // A bit of the sixth sample's dense features: its sum no longer matches.
    let mut flipped = whole.clone();
    flipped[at(5) + 9] ^= 4;
    let error = fails(&file("flipped", &flipped));
    assert!(error.contains("flipped: in sample 5: the sum of a unit's bytes is"), "{error}");
    assert!(
        error.contains(&format!("at byte {}", at(5))) && error.contains("fetch or write the file again"),
        "{error}"
    );
    // Cut off within a sample; behind one.
    let error = fails(&file("cut", &whole[..at(7) + 3]));
    assert!(error.contains("in sample 7: "), "{error}");
    assert!(fails(&file("short", &whole[..at(2)])).contains("its header says 8 samples"));
    // A slot that says that it has more keys than its unit: with a right sum, the list is what is wrong.
    let mut longer = whole.clone();
    let list = at(4) + 4 + 12 + 4 + 8;
    longer[list] = 3;
    longer[at(5) - 1] = longer[at(4) + 4..at(5) - 1].iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte));
    let error = fails(&file("longer", &longer));
    assert!(error.contains("in sample 4: a sample of") && error.contains("has 3 keys in slot 1"), "{error}");
    // Read as narrow keys, the first list ends early.
    let error = fails(&format!("norm:{}", put(dir.path(), "wide", &whole)));
    assert!(error.contains("in sample 0: "), "{error}");
    let error = fails(&file("trailing", &[&whole[..], b"x"].concat()));
    assert!(error.contains("1 bytes follow the last of the samples"), "{error}");
    // The files of a list have other slots, are missing, or none.
    put(dir.path(), "other", norm(&Set { features: 1, ..set.clone() }, &[], true, true));
    let list = |text: &str| fails(&format!("norm:{}", put(dir.path(), "list.txt", text)));
    assert!(list("2\nwhole\nother\n").contains("are (1, 2, 1) in it, (1, 2, 2) in"));
    assert!(list("2\nwhole\nabsent\n").contains("\"absent\", which is neither there"));
    assert!(list("3\nwhole\nother\n").contains("its first line says 3 files, it lists 2"));
    assert!(
        fails(&format!("norm:{}:labels=2,i64", dir.path().join("whole").display())).contains("have 1 of label, and 2")
    );
}

#[test]
fn raw_errors_name_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let samples: Vec<_> =
        (0..6).map(|at| Sample { labels: vec![0.0], dense: vec![], ids: vec![vec![at], vec![at, 9]] }).collect();
    let bytes = raw(&samples, false);
    let file = put(dir.path(), "t.bin", &bytes);
    let cut = put(dir.path(), "cut.bin", &bytes[..bytes.len() - 2]);
    for (spec, words) in [
        (format!("raw:{cut}:labels=1,hotness=1/2"), "its 94 bytes are not a whole number of samples of 16 bytes"),
        (format!("raw:{file}:labels=1,slots=26"), "not a whole number of samples of 108 bytes"),
        (format!("raw:{file}"), "nothing says how many keys a sample has"),
        (format!("raw:{file}:labels=1,hotness=3/0"), "slot 1 is said to have no keys"),
        (format!("raw:{file}:labels=1,hotness=1/2,features=a"), "have 2 of features, and 1 are said"),
        (format!("raw:{file}:labels=1,hotness=1/2,rows=6"), "2 sparse features, and rows of 1 are said"),
        (format!("raw:{file}:labels=1,hotness=1/2,rows=6/9"), "sample 0 has the id 9 in feature \"1\""),
        (format!("raw:{file}:labels=1,hotness=1/2,rows=4/10"), "sample 4 has the id 4 in feature \"0\""),
        (format!("raw:{file}:labels=1,hotness=1/2,rows=6/10,sizes=6/10"), "rows= beside sizes="),
        (format!("raw:{file}:labels=1,hotness=1/2,sizes=6/9223372036854775807"), "the rows of its features pass 2⁶³"),
        (format!("norm:{file}:slots=3"), "slots= or hotness= does not belong"),
        (file.clone(), "neither its name nor its content tells"),
        (format!("raw:{}:slots=1", dir.path().display()), "is no regular file"),
        (format!("raw:{file}.none:slots=1"), "No such file"),
    ] {
        let error = fails(&spec);
        assert!(error.contains(words), "{spec}: {error}");
    }
    for setting in ["colour=red", "slots=0", "hotness=1//2", "keys=f32", "wide"] {
        let error = format!("raw:t:{setting}").parse::<DataSpec>().unwrap_err();
        assert_eq!(error.setting, setting);
    }
}

#[test]
fn batches_that_nobody_could_hold_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = put(dir.path(), "t.bin", [0; 4]);
    let spec: DataSpec = format!("raw:{file}:slots=1").parse().unwrap();
    for (batch, ahead, words) in
        [(0, 1, "0 samples"), ((1 << 24) + 1, 1, "samples of a batch"), (1, 0, "batches ahead")]
    {
        let options = DataOptions { batch, ahead, drop_last: false };
        let error = DataReader::open(&spec, &options).unwrap_err();
        assert!(error.message().contains(words) && error.remedy.contains("ask for 1 to"), "{error}");
    }
}

/// A format, the path of a sound file, and the settings that it needs.
type SoundFile = (DataFormat, String, String);

fn sound(folder: &std::path::Path) -> Vec<SoundFile> {
    let set = set(8);
    let source = format!("norm:{}:i64", put(folder, "source", norm(&set, &set.samples, true, true)));
    let named = |format: DataFormat| {
        let path = folder.join(format!("sound.{}", format.name()));
        let (path, settings) = match format {
            DataFormat::Norm => (folder.join("source"), ":i64"),
            DataFormat::Raw => (path, ":labels=1,dense=2,hotness=1"),
            _ => (path, ""),
        };
        if format == DataFormat::Raw {
            std::fs::write(&path, [7; 64]).unwrap();
        } else if format != DataFormat::Norm {
            let spec = source.parse().unwrap();
            convert(&spec, &path, format, &DataWriteOptions::default(), &mut |_, _| ControlFlow::Continue(())).unwrap();
        }
        (format, path.display().to_string(), settings.to_owned())
    };
    DataFormat::ALL.into_iter().map(named).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_samples_or_an_error(which in 0..5usize, edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<prop::sample::Index>(), is_cut: bool) {
        static FILES: LazyLock<(tempfile::TempDir, Vec<SoundFile>)> = LazyLock::new(|| {
            let dir = tempfile::tempdir().unwrap();
            let files = sound(dir.path());
            (dir, files)
        });
        let (format, path, settings) = &FILES.1[which];
        let mut bytes = std::fs::read(path).unwrap();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let dir = tempfile::tempdir().unwrap();
        let edited = put(dir.path(), "edited", bytes);
        match read(&format!("{}:{edited}{settings}", format.name()), 3) {
            Ok(_) => {}
            Err(error) => prop_assert!(!error.remedy.contains("bug of Warprow"), "{error}"),
        }
    }
}

#[test]
fn columns_that_are_not_what_is_said_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let csv = put(dir.path(), "t.csv", "label,dense,user,item\n1,0.5,7,3\n0,2,8,x\n");
    let numbers = put(dir.path(), "numbers.csv", "1,2,3\n4,5,6\n");
    let twice = put(dir.path(), "twice.csv", "label,user,user\n1,2,3\n");
    let short = put(dir.path(), "short.csv", "label,user\n1,2\n1\n");
    let empty = put(dir.path(), "empty.csv", "label,dense,user\n1,,2\n");
    let vast = put(dir.path(), "vast.csv", "label,user\n1,9223372036854775808\n");
    for (spec, words) in [
        (csv.clone(), "in sample 1: line 3: column item: \"x\" is no integer of 64 bits, and no list of them"),
        (
            format!("{csv}:features=shop"),
            "it has no column \"shop\" of numbers; its columns are: label, dense, user, item",
        ),
        (format!("{csv}:labels=user,features=user"), "\"user\" is named twice"),
        (format!("{csv}:dense=2"), "2 dense features are said, and its names tell of 1: dense"),
        (format!("{csv}:slots=2"), "slots= or hotness= does not belong to a data set of the kind csv"),
        (format!("{csv}:i64"), "a type of keys does not belong"),
        (numbers, "it has no line of names"),
        (twice, "two columns called \"user\""),
        (short, "in sample 1: CSV error: record 2"),
        (empty, "in sample 0: line 2: column dense: \"\" is no number"),
        (vast, "is no integer of 64 bits"),
    ] {
        let error = fails(&spec);
        assert!(error.contains(words), "{spec}: {error}");
    }
    let (_, npz, _) = sound(dir.path()).into_iter().find(|(format, ..)| *format == DataFormat::Npz).unwrap();
    let archive = std::fs::read(&npz).unwrap();
    // The last offset of the second feature: it no longer ends with the feature's ids.
    let at = archive.windows(8).rposition(|bytes| bytes == 7i64.to_le_bytes()).unwrap();
    let mut other = archive.clone();
    other[at] = 9;
    let error = fails(&format!("npz:{}", put(dir.path(), "other.npz", other)));
    assert!(error.contains("the array 1.offsets") || error.contains("the checksum of the array 1.offsets"), "{error}");
    assert!(fails(&format!("npz:{}", put(dir.path(), "none.npz", b"PK"))).contains("it is cut off"));
    assert!(fails(&format!("npz:{npz}:features=user")).contains("it has no column \"user\""));
}
