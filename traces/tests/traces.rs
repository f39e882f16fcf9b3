//! Traces of every format: what was written is read, and what lies about itself is refused by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::Int64Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use warprow_keys::NgramModel;
use warprow_traces::{FileErrorKind, KeyScores, KeyType, MAX_SAMPLE_KEYS, Trace, TraceBlock, TraceFormat, TraceSpec};

/// Samples of slots of keys.
type Samples = Vec<Vec<Vec<u64>>>;

fn read(spec: &str) -> Result<Samples, warprow_traces::FileError> {
    let mut trace = Trace::open(&spec.parse().unwrap())?;
    let mut block = TraceBlock::default();
    let mut all = Samples::new();
    while trace.next_block(&mut block)? {
        assert!(!block.is_empty() && block.slots() == trace.slots().len());
        all.extend(block.samples().map(|sample| sample.slots().map(<[u64]>::to_vec).collect::<Vec<_>>()));
    }
    assert_eq!(trace.samples(), all.len() as u64);
    let (read, bytes) = trace.progress();
    assert!(read <= bytes, "{read} of {bytes}");
    Ok(all)
}

fn fails(spec: &str) -> (FileErrorKind, String) {
    let error = read(spec).unwrap_err();
    (error.kind, error.message())
}

#[test]
fn tokens_are_rows_of_their_ngrams() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let text: Vec<u32> = (0..70_000u32).map(|at| at.wrapping_mul(2_654_435_761) % 5000).collect();
    fs::write(at("t.u32"), text.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    fs::write(at("t.i64"), text.iter().flat_map(|&token| i64::from(token).to_le_bytes()).collect::<Vec<_>>()).unwrap();
    fs::write(at("plain"), text.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    // Of a map, tokens 2k and 2k + 1 are one.
    fs::write(at("map.u32"), (0..5000u32).flat_map(|token| (token / 2).to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let path = |name: &str| at(name).display().to_string();
    let wanted = |model: &str, words: Option<Arc<[u32]>>, end: Option<u32>| {
        let mut hash = NgramModel::named(model).unwrap().text(words, end).unwrap();
        let mut ids = Vec::new();
        hash.push(&text.iter().map(|&token| token.into()).collect::<Vec<_>>(), &mut ids).unwrap();
        ids.chunks(hash.heads()).map(|ids| vec![ids.iter().map(|&id| id as u64).collect()]).collect::<Samples>()
    };
    let all = wanted("engram-14", None, None);
    for name in ["t.u32", "t.i64", "plain"] {
        assert_eq!(read(&format!("tokens:{}:hash=engram-14", path(name))).unwrap(), all, "{name}");
    }
    let mapped = wanted("engram-14", Some((0..5000).map(|token| token / 2).collect()), Some(7));
    assert_ne!(mapped, all);
    let spec = format!("tokens:{}:hash=engram-14,end=7,map={}", path("t.u32"), path("map.u32"));
    assert_eq!(read(&spec).unwrap(), mapped);
    let ended = wanted("ple", None, Some(7));
    assert_eq!(read(&format!("tokens:{}:hash=ple,end=7", path("t.u32"))).unwrap(), ended);
    assert_eq!((ended.len(), ended[0][0].len()), (70_000, 16));

    for (spec, word) in [
        (format!("tokens:{}", path("t.u32")), "add :hash=NAME, one of engram-1, engram-14, ple"),
        (format!("tokens:{}:hash=gemma", path("t.u32")), "no such model is known"),
        (format!("tokens:{}:hash=ple,map={}", path("t.u32"), path("none.u32")), "none.u32"),
        (format!("ids:{}:end=7", path("t.u32")), "hash=, map= or end="),
        (format!("tokens:{}:hash=ple,ids=3", path("t.u32")), "ids="),
        (format!("tokens:{}:hash=ple,sizes=3/4", path("t.u32")), "sizes="),
    ] {
        let error = read(&spec).unwrap_err();
        let error = format!("{error}; {}", error.remedy);
        assert!(error.contains(word), "{spec}: {error}");
    }
    // Token 2 of the text is past the map.
    fs::write(at("short.u32"), [0; 8 + 4]).unwrap();
    let (kind, error) = fails(&format!("tokens:{}:hash=ple,map={}", path("t.u32"), path("short.u32")));
    assert_eq!(kind, FileErrorKind::Disagree);
    assert!(error.contains("of its tokens 0 to") && error.contains("has no word"), "{error}");
    fs::write(at("odd.u32"), [0; 7]).unwrap();
    assert_eq!(fails(&format!("tokens:{}:hash=ple", path("odd.u32"))).0, FileErrorKind::Damaged);
    assert_eq!(fails(&format!("tokens:{}:hash=ple,map={}", path("t.u32"), path("odd.u32"))).0, FileErrorKind::Damaged);
}

fn width(bytes: &mut Vec<u8>, key: u64, of: KeyType) {
    bytes.extend_from_slice(&key.to_le_bytes()[..of.size() as usize]);
}

/// A Norm data file.
fn norm(samples: &Samples, slots: usize, labels: usize, dense: usize, of: KeyType, framed: bool) -> Vec<u8> {
    let mut file = Vec::new();
    let unit = |file: &mut Vec<u8>, bytes: &[u8]| {
        if framed {
            file.extend((bytes.len() as i32).to_le_bytes());
        }
        file.extend(bytes);
        if framed {
            file.push(bytes.iter().fold(0, |sum, &byte| sum.wrapping_add(byte)));
        }
    };
    let header = [framed.into(), samples.len() as i64, labels as i64, dense as i64, slots as i64, 0, 0, 0];
    unit(&mut file, &header.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    for sample in samples {
        let mut bytes = vec![0x3f; (labels + dense) * 4];
        for keys in sample {
            bytes.extend((keys.len() as i32).to_le_bytes());
            keys.iter().for_each(|&key| width(&mut bytes, key, of));
        }
        unit(&mut file, &bytes);
    }
    file
}

fn parquet(path: &Path, samples: &[Vec<Vec<u64>>], lists: bool) {
    let slots = samples[0].len();
    let column = |slot: usize| match lists {
        true => format!("optional group C{slot} (LIST) {{ repeated group list {{ optional int64 element; }} }}"),
        false => format!("optional int64 C{slot};"),
    };
    let schema =
        format!("message m {{ required float label; {} }}", (0..slots).map(column).collect::<Vec<_>>().join(" "));
    let properties = WriterProperties::builder().set_data_page_row_count_limit(7).set_write_batch_size(7).build();
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    for group in samples.chunks(100) {
        let mut group_writer = writer.next_row_group().unwrap();
        let mut label = group_writer.next_column().unwrap().unwrap();
        let labels = vec![1.0; group.len()];
        label.typed::<parquet::data_type::FloatType>().write_batch(&labels, None, None).unwrap();
        label.close().unwrap();
        for slot in 0..slots {
            let mut keys = Vec::new();
            let mut definition = Vec::new();
            let mut repetition = Vec::new();
            for sample in group {
                let list = &sample[slot];
                keys.extend(list.iter().map(|&key| key as i64));
                if list.is_empty() {
                    definition.push(1);
                    repetition.push(0);
                }
                definition.extend(list.iter().map(|_| if lists { 3 } else { 1 }));
                repetition.extend((0..list.len()).map(|index| i16::from(index > 0)));
            }
            let mut column = group_writer.next_column().unwrap().unwrap();
            let repetition = lists.then_some(&repetition[..]);
            column.typed::<Int64Type>().write_batch(&keys, Some(&definition), repetition).unwrap();
            column.close().unwrap();
        }
        group_writer.close().unwrap();
    }
    writer.close().unwrap();
}

fn samples(slots: usize, of: KeyType, lists: bool) -> impl Strategy<Value = Samples> {
    let key = any::<u64>().prop_map(move |key| match of {
        KeyType::U32 => u64::from(key as u32),
        KeyType::I32 => i64::from(key as i32) as u64,
        _ => key,
    });
    let list = prop::collection::vec(key, if lists { 0..6 } else { 1..2 });
    prop::collection::vec(prop::collection::vec(list, slots), 1..250)
}

fn in_folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name).display().to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn norm_is_read_as_it_was_written(
        (of, (slots, samples)) in prop::sample::select(vec![KeyType::U32, KeyType::I64])
            .prop_flat_map(|of| (Just(of), (1usize..5).prop_flat_map(move |slots| (Just(slots), samples(slots, of, true))))),
        (labels, dense) in (0usize..3, 0usize..14),
        framed in any::<bool>(),
        cut in 0usize..250,
    ) {
        let (_folder, path) = in_folder();
        let (first, second) = samples.split_at(cut.min(samples.len()));
        for (name, part) in [("a.data", first), ("b.data", second)] {
            fs::write(path(name), norm(&part.to_vec(), slots, labels, dense, of, framed)).unwrap();
        }
        fs::write(path("list.txt"), "2\n./gone/a.data\nb.data\n").unwrap();
        let keys = if of == KeyType::I64 { ":i64" } else { "" };
        prop_assert_eq!(read(&format!("{}{keys}", path("list.txt"))).unwrap(), samples.clone());
        prop_assert_eq!(read(&format!("{}{keys}", path("b.data"))).unwrap(), second);
    }

    #[test]
    fn raw_ids_and_arrays_are_read_as_they_were_written(
        of in prop::sample::select(vec![KeyType::U32, KeyType::I64, KeyType::U64, KeyType::I32]),
        hotness in prop::collection::vec(1usize..4, 1..5),
        (labels, dense) in (0usize..3, 0usize..14),
        count in 0usize..200,
        seed in any::<u64>(),
    ) {
        let (_folder, path) = in_folder();
        let mut state = seed;
        let mut key = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match of {
                KeyType::U32 => state >> 32,
                KeyType::I32 => i64::from((state >> 32) as i32) as u64,
                _ => state,
            }
        };
        let samples: Samples =
            (0..count).map(|_| hotness.iter().map(|&keys| (0..keys).map(|_| key()).collect()).collect()).collect();
        let mut raw = Vec::new();
        let mut bare = Vec::new();
        for sample in &samples {
            raw.extend(vec![7; (labels + dense) * 4]);
            for &key in sample.iter().flatten() {
                width(&mut raw, key, of);
                width(&mut bare, key, of);
            }
        }
        let name = match of { KeyType::U32 => "u32", KeyType::I32 => "i32", KeyType::U64 => "u64", KeyType::I64 => "i64" };
        if matches!(of, KeyType::U32 | KeyType::I64) {
            fs::write(path("t.bin"), &raw).unwrap();
            let hotness = hotness.iter().map(usize::to_string).collect::<Vec<_>>().join("/");
            let spec = format!("raw:{}:labels={labels},dense={dense},hotness={hotness},keys={name}", path("t.bin"));
            prop_assert_eq!(read(&spec).unwrap(), samples.clone());
        }
        let keys: Vec<u64> = samples.iter().flatten().flatten().copied().collect();
        let chunks = |each: usize| keys.chunks(each).map(|keys| vec![keys.to_vec()]).collect::<Samples>();
        fs::write(path(&format!("t.{name}")), &bare).unwrap();
        prop_assert_eq!(read(&path(&format!("t.{name}"))).unwrap(), chunks(1));
        prop_assert_eq!(read(&format!("{}:ids=7", path(&format!("t.{name}")))).unwrap(), chunks(7));
        fs::rename(path(&format!("t.{name}")), path("t.keyset")).unwrap();
        prop_assert_eq!(read(&format!("keyset:{}:{name}", path("t.keyset"))).unwrap(), chunks(1));
        let each: usize = hotness.iter().sum();
        let descr = format!("<{}{}", &name[..1], of.size());
        let array = |shape: &str| {
            let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((text.len() as u16).to_le_bytes());
            file.extend(text.as_bytes());
            file.extend(&bare);
            file
        };
        fs::write(path("t.npy"), array(&format!("({count}, {each})"))).unwrap();
        prop_assert_eq!(read(&path("t.npy")).unwrap(), chunks(each));
        fs::write(path("t.npy"), array(&format!("({},)", keys.len()))).unwrap();
        prop_assert_eq!(read(&path("t.npy")).unwrap(), chunks(1));
        prop_assert_eq!(read(&format!("{}:ids=3", path("t.npy"))).unwrap(), chunks(3));
    }

    #[test]
    fn parquet_is_read_as_it_was_written(
        (lists, samples) in any::<bool>().prop_flat_map(|lists| (Just(lists), samples(3, KeyType::I64, lists))),
        cut in 1usize..250,
    ) {
        let (_folder, path) = in_folder();
        let cut = cut.min(samples.len());
        let (first, second) = samples.split_at(cut);
        parquet(Path::new(&path("0.parquet")), first, lists);
        let mut stats = vec![format!(r#"{{"file_name": "gone/0.parquet", "num_rows": {cut}}}"#)];
        if !second.is_empty() {
            parquet(Path::new(&path("1.parquet")), second, lists);
            stats.push(format!(r#"{{"file_name": "1.parquet", "num_rows": {}}}"#, second.len()));
        }
        let whole = read(&path("")).unwrap();
        prop_assert_eq!(&whole, &samples);
        let cats = r#"[{"col_name": "C2", "index": 3}, {"col_name": "C0", "index": 1}]"#;
        let metadata = |stats: &str| format!(r#"{{"file_stats": [{stats}], "cats": {cats}, "conts": [], "labels": []}}"#);
        fs::write(path("_metadata.json"), metadata(&stats.join(","))).unwrap();
        let chosen: Samples = samples.iter().map(|sample| vec![sample[0].clone(), sample[2].clone()]).collect();
        prop_assert_eq!(read(&path("")).unwrap(), chosen);
        let one: Samples = samples.iter().map(|sample| vec![sample[1].clone()]).collect();
        prop_assert_eq!(read(&format!("{}:C1", path("_metadata.json"))).unwrap(), one);
        fs::write(path("_metadata.json"), metadata(r#"{"file_name": "0.parquet", "num_rows": 4711}"#)).unwrap();
        prop_assert_eq!(fails(&path("")).0, FileErrorKind::Disagree);
    }

    /// Whatever is changed or cut off: the same, something else, or an error; never a panic, and never more keys than bytes give.
    #[test]
    fn damaged_files_do_no_harm(
        which in 0usize..6,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (_folder, path) = in_folder();
        let samples: Samples = (0..40).map(|i| vec![vec![i, i * i], vec![], vec![i]]).collect();
        let (name, spec, mut bytes) = match which {
            0 => ("a", "a", norm(&samples, 3, 1, 2, KeyType::I64, true)),
            1 => ("a", "a", norm(&samples, 3, 1, 2, KeyType::U32, false)),
            2 => ("a.parquet", "a.parquet", { parquet(Path::new(&path("a.parquet")), &samples, true); fs::read(path("a.parquet")).unwrap() }),
            3 => ("a.csv", "a.csv:id,query=user", b"user,id\n1,5\n1,6\n2,-7\n".to_vec()),
            4 => ("a.npy", "a.npy", b"\x93NUMPY\x01\x00\x46\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }            \n012345678901234567890123".to_vec()),
            _ => ("a.txt", "a.txt", b"2\n./a.data\n./b.data\n".to_vec()),
        };
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(path(name), &bytes).unwrap();
        let keyed = if which == 0 { ":i64" } else { "" };
        if let Ok(samples) = read(&format!("{}{keyed}", path(spec))) {
            let keys: usize = samples.iter().flatten().map(Vec::len).sum();
            prop_assert!(which == 2 || keys <= bytes.len());
        }
    }
}

#[test]
fn text_is_read_by_columns_and_queries() {
    let (_folder, path) = in_folder();
    fs::write(path("t.csv"), "\u{feff}user,item,time\n7, 1,0\n7,2,\"1\"\n8,1,2\n7,18446744073709551615,3\n").unwrap();
    let item = vec![vec![vec![1]], vec![vec![2]], vec![vec![1]], vec![vec![u64::MAX]]];
    assert_eq!(read(&format!("{}:item", path("t.csv"))).unwrap(), item);
    let both = vec![vec![vec![1, 2], vec![7, 7]], vec![vec![1], vec![8]], vec![vec![u64::MAX], vec![7]]];
    assert_eq!(read(&format!("{}:item,user,query=user", path("t.csv"))).unwrap(), both);
    let (kind, what) = fails(&path("t.csv"));
    assert!(kind == FileErrorKind::Unclear && what.contains("user, item, time"), "{what}");
    // Which there are is known without a choice.
    let columns = |spec: String| Trace::columns(&spec.parse().unwrap());
    assert_eq!(columns(path("t.csv")).unwrap(), ["user", "item", "time"]);
    assert_eq!(columns(format!("{}:time,user", path("t.csv"))).unwrap(), ["time", "user"]);
    assert!(columns(path("absent.csv")).is_err() && columns(format!("{}:i64", path("t.csv"))).is_err());
    let is_text = |spec: String| TraceFormat::of(&spec.parse().unwrap()).unwrap() == TraceFormat::Csv;
    assert!(is_text(path("t.csv")) && TraceFormat::Csv.has_columns() && !TraceFormat::Norm.has_columns());
    assert!(fails(&format!("{}:price", path("t.csv"))).1.contains("no column \"price\""));
    fs::write(path("t.csv"), "5\n6\n").unwrap();
    assert!(fails(&path("t.csv")).1.contains("no header line"));
    fs::write(path("t.csv"), "id\n5\nsix\n").unwrap();
    let (_, what) = fails(&path("t.csv"));
    assert!(what.contains("line 3") && what.contains("\"six\""), "{what}");
    fs::write(path("t.csv"), "id\n-5\n18446744073709551615\n").unwrap();
    assert!(fails(&path("t.csv")).1.contains("not both"));
    fs::write(path("t.csv"), "id\n-5\n").unwrap();
    let mut trace = Trace::open(&TraceSpec::new(path("t.csv"))).unwrap();
    assert!(!trace.slots()[0].signed);
    assert_eq!(trace.next().unwrap().unwrap().keys(), [-5i64 as u64]);
    assert!(trace.slots()[0].signed && trace.next().is_none());
    fs::write(path("t.tsv"), "a\tb\n1\t2\n").unwrap();
    assert_eq!(read(&format!("{}:b", path("t.tsv"))).unwrap(), [vec![vec![2]]]);
}

#[test]
fn a_line_without_an_end_does_not_fill_the_memory() {
    let (_folder, path) = in_folder();
    fs::write(path("t.csv"), format!("id\n\"{}", "1\n".repeat(9 << 20))).unwrap();
    let (kind, message) = fails(&path("t.csv"));
    assert!(kind == FileErrorKind::Damaged && message.contains("16 MiB"), "{message}");
}

#[test]
fn keys_are_shifted_by_the_sizes_of_the_slots_before() {
    let (_folder, path) = in_folder();
    let samples = vec![vec![vec![0, 9], vec![], vec![2]], vec![vec![3], vec![4], vec![0]]];
    fs::write(path("t"), norm(&samples, 3, 1, 0, KeyType::U32, true)).unwrap();
    let shifted = vec![vec![vec![0, 9], vec![], vec![17]], vec![vec![3], vec![14], vec![15]]];
    assert_eq!(read(&format!("{}:sizes=10/5/3", path("t"))).unwrap(), shifted);
    let only = [vec![vec![17]], vec![vec![15]]];
    assert_eq!(read(&format!("{}:sizes=10/5/3,slot=2", path("t"))).unwrap(), only);
    assert_eq!(read(&format!("{}:slot=0", path("t"))).unwrap(), [vec![vec![0, 9]], vec![vec![3]]]);
    assert!(fails(&format!("{}:slot=3", path("t"))).1.contains("no slot \"3\""));
    let (kind, what) = fails(&format!("{}:sizes=10/4/3", path("t")));
    assert!(kind == FileErrorKind::Disagree && what.contains("sample 1") && what.contains("key 4 in slot 1"), "{what}");
    assert!(fails(&format!("{}:sizes=10/4", path("t"))).1.contains("3 slots, and 2 sizes"));
    assert!(fails(&format!("{}:sizes={}/1/1", path("t"), u64::MAX)).1.contains("pass 2⁶⁴"));
}

/// Replaces bytes of a file and tells what reading it says.
fn lie(path: &str, at: usize, bytes: &[u8], spec: &str) -> (FileErrorKind, String) {
    let right = fs::read(path).unwrap();
    let mut wrong = right.clone();
    wrong[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(path, wrong).unwrap();
    let told = fails(spec);
    fs::write(path, right).unwrap();
    told
}

#[test]
fn headers_of_norm_that_lie_are_refused() {
    let (_folder, path) = in_folder();
    let samples = vec![vec![vec![1, 2], vec![3]]; 9];
    let file = path("t");
    fs::write(&file, norm(&samples, 2, 1, 1, KeyType::U32, false)).unwrap();
    assert_eq!(read(&file).unwrap(), samples);
    let spec = format!("norm:{file}");
    let says = |at: usize, bytes: &[u8], what: &str| {
        let (kind, told) = lie(&file, at, bytes, &spec);
        assert!(kind == FileErrorKind::Damaged && told.contains(what), "{what}: {told}");
    };
    says(8, &i64::MAX.to_le_bytes(), "samples of at least");
    says(8, &(-1i64).to_le_bytes(), "-1 samples");
    says(8, &8i64.to_le_bytes(), "bytes follow the last");
    says(8, &10i64.to_le_bytes(), "cut off");
    says(16, &i64::MAX.to_le_bytes(), "labels");
    says(24, &(-4i64).to_le_bytes(), "-4 dense");
    says(32, &0i64.to_le_bytes(), "0 slots");
    says(32, &(1i64 << 40).to_le_bytes(), "slots; 1 to");
    says(0, &5i64.to_le_bytes(), "no header");
    says(72, &i32::MAX.to_le_bytes(), "2147483647 keys in slot 0");
    says(72, &(-1i32).to_le_bytes(), "-1 keys in slot 0");

    fs::write(&file, norm(&samples, 2, 1, 1, KeyType::U32, true)).unwrap();
    assert_eq!(read(&file).unwrap(), samples);
    let says = |at: usize, bytes: &[u8], what: &str| {
        let (kind, told) = lie(&file, at, bytes, &spec);
        assert!(kind == FileErrorKind::Damaged && told.contains(what), "{what}: {told}");
    };
    says(69, &i32::MAX.to_le_bytes(), "a unit says that it has 2147483647 bytes");
    says(69, &(-1i32).to_le_bytes(), "a unit says that it has -1 bytes");
    says(74, &[1], "the sum of a unit's bytes");
    says(12, &[8], "the sum of a unit's bytes");
    // The right sum of a sample whose slots end elsewhere: 3 keys rather than 2.
    let sum = 69 + 4 + 28;
    let right = fs::read(&file).unwrap();
    let mut wrong = right.clone();
    (wrong[81], wrong[sum]) = (3, right[sum].wrapping_add(1));
    fs::write(&file, &wrong).unwrap();
    let (_, told) = fails(&spec);
    assert!(told.contains("has 3 keys in slot 1"), "{told}");
}

#[test]
fn data_sets_that_disagree_are_refused() {
    let (_folder, path) = in_folder();
    let write = |name: &str, slots: usize| {
        fs::write(path(name), norm(&vec![vec![vec![1]; slots]; 3], slots, 1, 0, KeyType::U32, true)).unwrap();
    };
    write("a", 2);
    write("b", 3);
    let list = |text: &str| fs::write(path("list.txt"), text).unwrap();
    list("2\na\nb\n");
    let (kind, what) = fails(&path("list.txt"));
    assert!(kind == FileErrorKind::Disagree && what.contains("(1, 0, 3)"), "{what}");
    list("3\na\nb\n");
    assert!(fails(&path("list.txt")).1.contains("says 3 files, it lists 2"));
    list("2\na\nc\n");
    assert_eq!(fails(&path("list.txt")).0, FileErrorKind::Missing);
    fs::write(path("t.bin"), [0; 41]).unwrap();
    assert!(fails(&format!("raw:{}:labels=1,slots=9", path("t.bin"))).1.contains("samples of 40 bytes"));
    assert_eq!(fails(&format!("raw:{}", path("t.bin"))).0, FileErrorKind::Unclear);
    assert_eq!(fails(&format!("raw:{}:slots=1,keys=u64", path("t.bin"))).0, FileErrorKind::Unclear);
    let vast = format!("raw:{}:hotness={}", path("t.bin"), MAX_SAMPLE_KEYS + 1);
    assert_eq!(fails(&vast).0, FileErrorKind::Unsupported);
    fs::write(path("t.u32"), [0; 10]).unwrap();
    assert!(fails(&path("t.u32")).1.contains("10 bytes are not a whole number of 4-byte"));
    assert!(fails(&format!("{}:u64", path("t.u32"))).1.contains("its name says"));
    assert_eq!(fails(&path("t.bin")).0, FileErrorKind::Name);
    assert_eq!(fails(&path("gone.bin")).0, FileErrorKind::Io);
    assert_eq!(fails("/dev/zero").0, FileErrorKind::Special);
    for (kind, rest) in [
        ("", "t.u32:column=a"),
        ("", "t.u32:query=a"),
        ("", "t.u32:labels=1"),
        ("norm:", "a:ids=3"),
        ("norm:", "a:slots=3"),
        ("norm:", "a:u64"),
    ] {
        assert_eq!(fails(&format!("{kind}{}", path(rest))).0, FileErrorKind::Unclear, "{kind}{rest}");
    }
}

#[test]
fn scores_go_with_their_keys() {
    let (folder, path) = in_folder();
    let write = |name: &str, words: &[u64]| {
        fs::write(path(name), words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    };
    write("key", &[5, -3i64 as u64, 9]);
    assert_eq!(KeyScores::open(folder.path()).unwrap_err().kind, FileErrorKind::Missing);
    write("meta", &[7, 0, 2]);
    let scores = KeyScores::open(folder.path()).unwrap();
    assert_eq!(scores.rows(), 3);
    let all: Vec<_> = scores.map(Result::unwrap).collect();
    assert_eq!(all, [(5, 7), (-3i64 as u64, 0), (9, 2)]);
    for bad in [f64::NAN.to_bits(), (-1.0f64).to_bits(), -1i64 as u64] {
        write("meta", &[f64::INFINITY.to_bits(), 0, bad]);
        let error = KeyScores::open(folder.path()).unwrap().find_map(Result::err).unwrap();
        assert!(error.message().contains("row 2"), "{error}");
    }
    write("meta", &[1, 2]);
    assert_eq!(KeyScores::open(folder.path()).unwrap_err().kind, FileErrorKind::Disagree);
    fs::write(path("meta"), [0; 23]).unwrap();
    assert_eq!(KeyScores::open(folder.path()).unwrap_err().kind, FileErrorKind::Damaged);
}

/// The data set of another writer.
#[test]
fn pyarrows_data_set_is_read() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let samples = read(&folder.display().to_string()).unwrap();
    let expected: Samples = (0..300i64)
        .map(|i| {
            let list = (0..i % 4).map(|j| (i * 7 + j) as u64).collect();
            vec![vec![(i * i % 1000) as u64], vec![(-i) as u64], list]
        })
        .collect();
    assert_eq!(samples, expected);
    let trace = Trace::open(&TraceSpec::new(&folder)).unwrap();
    let names: Vec<_> = trace.slots().iter().map(|slot| (&*slot.name, slot.signed)).collect();
    assert_eq!(names, [("C1", true), ("C2", true), ("C3", true)]);
    assert_eq!((trace.slot("C2"), trace.slot("2"), trace.slot("3")), (Some(1), Some(2), None));
}
