//! Id traces from files: what is read, and what is said of files that are not as they should be.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use warprow_traces::{FileError, FileErrorKind};
use warprow_workload::{RecordedKeys, TraceFile};

fn read(directory: &Path, name: &str, column: Option<&str>, bytes: &[u8]) -> Result<RecordedKeys, FileError> {
    let path = directory.join(name);
    fs::write(&path, bytes).unwrap();
    TraceFile { path, column: column.map(str::to_owned) }.read()
}

/// What is said of a file, and what kind of thing it is.
fn problem(name: &str, column: Option<&str>, bytes: &[u8]) -> (FileErrorKind, String) {
    let directory = tempfile::tempdir().unwrap();
    let error = read(directory.path(), name, column, bytes).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
    (error.kind, error.message())
}

/// Refuses any answer but one of `kind` that says `what`.
fn refused(name: &str, column: Option<&str>, bytes: &[u8], kind: FileErrorKind, what: &str) {
    let (found, said) = problem(name, column, bytes);
    assert!(found == kind && said.contains(what), "{name}: {found:?}, {said}");
}

fn keys(name: &str, column: Option<&str>, bytes: &[u8]) -> RecordedKeys {
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
    assert_eq!(
        keys("a.u32", None, &[1, 0, 0, 0, 255, 255, 255, 255]),
        RecordedKeys::Unsigned(vec![1, u32::MAX.into()])
    );
    assert_eq!(keys("a.i32", None, &[255; 4]), RecordedKeys::Signed(vec![-1]));
    assert_eq!(keys("a.u64", None, &[255; 8]), RecordedKeys::Unsigned(vec![u64::MAX]));
    assert_eq!(keys("a.i64", None, &[255; 8]), RecordedKeys::Signed(vec![-1]));
    assert_eq!(keys("a.bin", Some("u32"), &[7, 0, 0, 0]), RecordedKeys::Unsigned(vec![7]));
    assert!(keys("a.u32", None, &[]).is_empty());
    refused("a.u64", None, &[0; 12], FileErrorKind::Damaged, "12 bytes are not a whole number of 8-byte integers");
    refused("a.bin", None, &[0; 8], FileErrorKind::Name, "does not tell");
    refused("a.u64", Some("u32"), &[0; 8], FileErrorKind::Unclear, "its name says that it holds u64");
}

#[test]
fn columns_of_text() {
    let text = b"user,item,rating\n1, 31 ,2.5\n2,-7,3\n";
    assert_eq!(keys("a.csv", Some("item"), text), RecordedKeys::Signed(vec![31, -7]));
    assert_eq!(
        keys("one.csv", None, b"\xef\xbb\xbfid\n5\n18446744073709551615\n"),
        RecordedKeys::Unsigned(vec![5, u64::MAX])
    );
    assert_eq!(keys("a.tsv", Some("b"), b"a\tb\n1\t2\n"), RecordedKeys::Signed(vec![2]));
    assert!(keys("a.csv", Some("a"), b"a,b\n").is_empty());
    refused(
        "a.csv",
        Some("movie"),
        text,
        FileErrorKind::Missing,
        "no column \"movie\"; its columns are: user, item, rating",
    );
    refused("a.csv", None, text, FileErrorKind::Unclear, "several columns: user, item, rating");
    refused("a.csv", Some("rating"), text, FileErrorKind::Damaged, "line 2 column rating: \"2.5\" is no integer");
    let beyond = b"id\n-1\n18446744073709551615\n";
    refused(
        "a.csv",
        None,
        beyond,
        FileErrorKind::Damaged,
        "line 3 column id: \"18446744073709551615\" does not fit beside",
    );
    refused("a.csv", None, b"id\n99999999999999999999\n", FileErrorKind::Damaged, "no integer of 64 bits");
    refused("a.csv", Some("b"), b"a,b\n1,2\n3\n", FileErrorKind::Damaged, "found record with 1 fields");
    refused("a.csv", None, b"", FileErrorKind::Unclear, "no header line");
    // Taken for a name, the first number would get lost.
    refused("a.csv", None, b"7\n8\n", FileErrorKind::Unclear, "its first line is the number 7");
}

#[test]
fn numpy_arrays() {
    let data = [1u64, 2, 3].map(u64::to_le_bytes).concat();
    assert_eq!(keys("a.npy", None, &array("<u8", "(3,)", &data)), RecordedKeys::Unsigned(vec![1, 2, 3]));
    assert_eq!(keys("a.npy", None, &array("<i8", "(1, 3)", &data)), RecordedKeys::Signed(vec![1, 2, 3]));
    assert_eq!(keys("a.npy", None, &array("<i4", "(6,)", &data)), RecordedKeys::Signed(vec![1, 0, 2, 0, 3, 0]));
    let second = npy(2, r#"{"shape": (3L,), "fortran_order": True, "descr": "<u8"}"#, &data);
    assert_eq!(keys("a.npy", None, &second), RecordedKeys::Unsigned(vec![1, 2, 3]));

    // More keys in a row than a sample of a trace may have: a list has no samples.
    let wide = vec![0; 4 * ((1 << 24) + 1)];
    assert_eq!(keys("a.npy", None, &array("<u4", "(1, 16777217)", &wide)).len(), (1 << 24) + 1);
    assert!(keys("a.npy", None, &array("<u8", "(0,)", &[])).is_empty());

    refused("a.npy", None, &array("<f4", "(6,)", &data), FileErrorKind::Unsupported, "its elements are <f4");
    refused("a.npy", None, &array(">i8", "(3,)", &data), FileErrorKind::Unsupported, "its elements are >i8");
    let shaped =
        |shape: &str, what: &str| refused("a.npy", None, &array("<u8", shape, &data), FileErrorKind::Damaged, what);
    shaped("(4,)", "promises 32 bytes of data, 24 follow");
    shaped("(2,)", "promises 16 bytes of data, 24 follow");
    shaped("(18446744073709551615, 18446744073709551615, 9)", "24 follow");
    shaped("(-3,)", "");
    shaped("3", "");
    let fortran = npy(1, "{'descr': '<u8', 'fortran_order': True, 'shape': (3, 1, 2)}", &[0; 48]);
    refused("a.npy", None, &fortran, FileErrorKind::Unsupported, "Fortran");
    for damaged in [&b"\x93NUMPX\x01\x00\x02\x00{}"[..], b"\x93NUM", &npy(9, "{}", &[]), &npy(1, "{}", &[])] {
        refused("a.npy", None, damaged, FileErrorKind::Damaged, "");
    }
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend(u32::MAX.to_le_bytes());
    refused("a.npy", None, &long, FileErrorKind::Damaged, "");
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
    assert_eq!(parse(path).read().unwrap(), RecordedKeys::Unsigned(vec![1]));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = "/no/such/file.csv:id".parse::<TraceFile>().unwrap().read().unwrap_err();
    assert!(error.is_absent(), "{error}");
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
