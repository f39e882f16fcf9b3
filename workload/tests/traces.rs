//! Id traces from files: what is read, and what is said of files that are not as they should be.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use warprow_workload::{Keys, TraceError, TraceFile, TraceProblem};

fn read(directory: &Path, name: &str, column: Option<&str>, bytes: &[u8]) -> Result<Keys, TraceError> {
    let path = directory.join(name);
    fs::write(&path, bytes).unwrap();
    TraceFile { path, column: column.map(str::to_owned) }.read()
}

fn problem(name: &str, column: Option<&str>, bytes: &[u8]) -> TraceProblem {
    let directory = tempfile::tempdir().unwrap();
    let error = read(directory.path(), name, column, bytes).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
    error.problem
}

fn keys(name: &str, column: Option<&str>, bytes: &[u8]) -> Keys {
    read(tempfile::tempdir().unwrap().path(), name, column, bytes).unwrap()
}

fn npy(version: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    let len = dictionary.len() as u32;
    file.extend(if version == 1 { (len as u16).to_le_bytes().to_vec() } else { len.to_le_bytes().to_vec() });
    file.extend(dictionary.as_bytes());
    file.extend(data);
    file
}

fn array(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy(1, &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

#[test]
fn raw_integers_of_every_type() {
    assert_eq!(keys("a.u32", None, &[1, 0, 0, 0, 255, 255, 255, 255]), Keys::Unsigned(vec![1, u32::MAX.into()]));
    assert_eq!(keys("a.i32", None, &[255; 4]), Keys::Signed(vec![-1]));
    assert_eq!(keys("a.u64", None, &[255; 8]), Keys::Unsigned(vec![u64::MAX]));
    assert_eq!(keys("a.i64", None, &[255; 8]), Keys::Signed(vec![-1]));
    assert_eq!(keys("a.bin", Some("u32"), &[7, 0, 0, 0]), Keys::Unsigned(vec![7]));
    assert!(matches!(problem("a.u64", None, &[0; 12]), TraceProblem::NotWhole { bytes: 12, width: 8 }));
    assert!(matches!(problem("a.bin", None, &[0; 8]), TraceProblem::UnknownFormat));
    assert!(matches!(problem("a.u32", None, &[]), TraceProblem::Empty));
}

#[test]
fn columns_of_text() {
    let text = b"user,item,rating\n1, 31 ,2.5\n2,-7,3\n";
    assert_eq!(keys("a.csv", Some("item"), text), Keys::Signed(vec![31, -7]));
    assert_eq!(keys("one.csv", None, b"\xef\xbb\xbfid\n5\n18446744073709551615\n"), Keys::Unsigned(vec![5, u64::MAX]));
    assert_eq!(keys("a.tsv", Some("b"), b"a\tb\n1\t2\n"), Keys::Signed(vec![2]));
    match problem("a.csv", Some("movie"), text) {
        TraceProblem::Column { wanted: Some(wanted), columns } => {
            assert_eq!((&*wanted, columns.join(" ")), ("movie", "user item rating".to_owned()));
        }
        other => panic!("{other}"),
    }
    assert!(matches!(problem("a.csv", None, text), TraceProblem::Column { wanted: None, .. }));
    match problem("a.csv", Some("rating"), text) {
        TraceProblem::Cell { line: 2, column, text } => assert_eq!((&*column, &*text), ("rating", "2.5")),
        other => panic!("{other}"),
    }
    let beyond = b"id\n-1\n18446744073709551615\n";
    assert!(matches!(problem("a.csv", None, beyond), TraceProblem::Sign { line: 3, .. }));
    assert!(matches!(problem("a.csv", None, b"id\n99999999999999999999\n"), TraceProblem::Sign { .. }));
    assert!(matches!(problem("a.csv", Some("b"), b"a,b\n1,2\n3\n"), TraceProblem::Csv(_)));
    assert!(matches!(problem("a.csv", Some("a"), b"a,b\n"), TraceProblem::Empty));
    assert!(matches!(problem("a.csv", None, b""), TraceProblem::Column { .. }));
}

#[test]
fn numpy_arrays() {
    let data = [1u64, 2, 3].map(u64::to_le_bytes).concat();
    assert_eq!(keys("a.npy", None, &array("<u8", "(3,)", &data)), Keys::Unsigned(vec![1, 2, 3]));
    assert_eq!(keys("a.npy", None, &array("<i8", "(1, 3)", &data)), Keys::Signed(vec![1, 2, 3]));
    assert_eq!(keys("a.npy", None, &array("<i4", "(6,)", &data)), Keys::Signed(vec![1, 0, 2, 0, 3, 0]));
    let second = npy(2, r#"{"shape": (3L,), "fortran_order": True, "descr": "<u8"}"#, &data);
    assert_eq!(keys("a.npy", None, &second), Keys::Unsigned(vec![1, 2, 3]));

    assert!(matches!(problem("a.npy", None, &array("<f4", "(6,)", &data)), TraceProblem::NpyType(t) if t == "<f4"));
    assert!(matches!(problem("a.npy", None, &array(">i8", "(3,)", &data)), TraceProblem::NpyType(_)));
    let size = |shape: &str| problem("a.npy", None, &array("<u8", shape, &data));
    assert!(matches!(size("(4,)"), TraceProblem::NpySize { promised: 32, found: 24 }));
    assert!(matches!(size("(2,)"), TraceProblem::NpySize { promised: 16, found: 24 }));
    assert!(matches!(size("(18446744073709551615, 18446744073709551615, 9)"), TraceProblem::NpySize { .. }));
    assert!(matches!(size("(-3,)"), TraceProblem::NpyHeader(_)));
    assert!(matches!(size("3"), TraceProblem::NpyHeader(_)));
    assert!(matches!(problem("a.npy", None, &array("<u8", "(0,)", &[])), TraceProblem::Empty));
    let fortran = npy(1, "{'descr': '<u8', 'fortran_order': True, 'shape': (3, 1, 2)}", &[0; 48]);
    assert!(matches!(problem("a.npy", None, &fortran), TraceProblem::NpyHeader(why) if why.contains("Fortran")));
    for damaged in [&b"\x93NUMPX\x01\x00\x02\x00{}"[..], b"\x93NUM", &npy(9, "{}", &[]), &npy(1, "{}", &[])] {
        assert!(matches!(problem("a.npy", None, damaged), TraceProblem::NpyHeader(_)));
    }
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend(u32::MAX.to_le_bytes());
    assert!(matches!(problem("a.npy", None, &long), TraceProblem::NpyHeader(_)));
}

#[test]
fn names_with_colons() {
    let parse = |text: &str| text.parse::<TraceFile>().unwrap();
    let file =
        |path: &str, column: Option<&str>| TraceFile { path: PathBuf::from(path), column: column.map(str::to_owned) };
    assert_eq!(parse("a/b.csv:item id"), file("a/b.csv", Some("item id")));
    assert_eq!(parse("a/b.csv"), file("a/b.csv", None));
    assert_eq!(parse(":x"), file(":x", None));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("day:1.u32");
    fs::write(&path, [1, 0, 0, 0]).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(parse(path), file(path, None));
    assert_eq!(parse(path).read().unwrap(), Keys::Unsigned(vec![1]));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = "/no/such/file.csv:id".parse::<TraceFile>().unwrap().read().unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Io(_)));
    assert!(error.to_string().contains("/no/such/file.csv"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_file_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in "[{}()',:0-9a-zL< ]{0,80}") {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("a.npy", bytes.clone()),
            ("b.npy", npy(1, &header, &bytes)),
            ("c.npy", npy(1, &format!("{{'descr': '<u8', 'fortran_order': False, 'shape': ({header}), }}"), &bytes)),
            ("a.csv", bytes.clone()),
            ("a.u32", bytes.clone()),
        ] {
            let _ = read(directory.path(), name, Some("a"), &bytes);
        }
    }
}
