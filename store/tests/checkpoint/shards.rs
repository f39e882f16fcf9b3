use warprow_formats::FileErrorKind;
use warprow_layout::DType;
use warprow_store::AttachError;

use crate::files::{Tensor, checkpoint, folder, look_up, open, random_bytes, refused, safetensors, stored};

const SHARD: &str = "model.layers.1.ple.ngram_embedding.shard_";

/// Shards of `rows` rows each, the last of `last`, in files of random order; and all rows.
fn shards(
    random: &mut fastrand::Rng,
    count: usize,
    rows: u64,
    last: u64,
    row_bytes: u64,
) -> (Vec<Vec<Tensor>>, Vec<u8>) {
    let mut all = Vec::new();
    let mut tensors: Vec<Tensor> = (0..count)
        .map(|number| {
            let rows = if number + 1 == count { last } else { rows };
            let bytes = random_bytes(random, (rows * row_bytes) as usize);
            all.extend_from_slice(&bytes);
            Tensor::new(format!("{SHARD}{number}.weight"), "I8", &[rows, row_bytes], bytes)
        })
        .collect();
    random.shuffle(&mut tensors);
    let mut files: Vec<Vec<Tensor>> = vec![Vec::new(); random.usize(2..=count.max(2))];
    for tensor in tensors {
        let file = random.usize(..files.len());
        files[file].push(tensor);
    }
    // Something else lies before and between.
    for (number, file) in files.iter_mut().enumerate() {
        let bytes = random_bytes(random, 24 * (number + 1));
        let other =
            Tensor::new(format!("model.layers.{number}.mlp.embed"), "BF16", &[bytes.len() as u64 / 8, 4], bytes);
        file.insert(random.usize(..=file.len()), other);
    }
    (files, all)
}

#[test]
fn shards_in_many_files_are_one_table() {
    for seed in 0..8 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let row_bytes = [160, 1, 513, 256, 264, 4099, 80, 10][seed as usize];
        let count = random.usize(2..14);
        let rows = random.u64(1..90);
        let last = random.u64(1..=rows);
        let (files, all) = shards(&mut random, count, rows, last, row_bytes);
        let folder = folder();
        let index = checkpoint(folder.path(), &files);
        let joined = "model.layers.1.ple.ngram_embedding.weight";
        let total = all.len() as u64 / row_bytes;
        for how in ["direct=0", "direct=0,depth=1", "direct=1", "direct=1,depth=2,workers=3", ""] {
            let store = match crate::files::try_open(folder.path(), how) {
                Err(error) if how.starts_with("direct=1") && error.to_string().contains("past the page cache") => {
                    eprintln!("skipped: {error}");
                    continue;
                }
                store => store.unwrap(),
            };
            let names: Vec<String> = store.tables().into_iter().map(|table| table.name).collect();
            assert!(names.iter().any(|name| name == joined), "{names:?}");
            assert!(!names.iter().any(|name| name.contains("shard_")), "{names:?}");
            assert_eq!(names.len(), files.len() + 1);
            assert_eq!(stored(&store, joined), all, "{how}");
            let ids: Vec<i64> = (0..200).map(|_| random.i64(0..total as i64)).collect();
            let wanted: Vec<u8> = ids
                .iter()
                .flat_map(|&id| &all[(id as u64 * row_bytes) as usize..][..row_bytes as usize])
                .copied()
                .collect();
            assert!(look_up(&store, joined, &ids, DType::I8, random.u64(0..4000)) == wanted, "{how}");
        }
        // By a pattern, by the index itself, with a name, and with the number of shards.
        let pattern = format!("tensor=ple=*.shard_{{{count}}}.weight");
        for path in [folder.path(), &*index] {
            assert_eq!(stored(&open(path, &pattern), "ple"), all);
            assert_eq!(stored(&open(path, "tensor=*.shard_{}.weight"), joined), all);
        }
        let (from, to) = (random.u64(0..total), total);
        let store = open(folder.path(), &format!("tensor=ple=*.shard_{{}}.weight,rows={from}..{to}"));
        assert_eq!(stored(&store, "ple"), all[(from * row_bytes) as usize..]);
    }
}

#[test]
fn only_files_that_are_needed_have_to_be_there() {
    let mut random = fastrand::Rng::with_seed(3);
    let a = random_bytes(&mut random, 600);
    let files =
        [vec![Tensor::new("a.weight", "U8", &[60, 10], a.clone())], vec![Tensor::new("b", "F32", &[1, 1], vec![0; 4])]];
    let folder = folder();
    checkpoint(folder.path(), &files);
    std::fs::remove_file(folder.path().join("model-00001.safetensors")).unwrap();
    assert_eq!(stored(&open(folder.path(), "tensor=a.weight"), "a.weight"), a);
    let error = refused(folder.path(), "");
    assert!(matches!(&error, AttachError::File(error) if error.kind == FileErrorKind::Missing), "{error}");
    let error = refused(folder.path(), "tensor=b");
    assert!(matches!(&error, AttachError::File(error) if error.kind == FileErrorKind::Missing), "{error}");
    // A file that holds what the index lists elsewhere.
    let other = safetensors(&[Tensor::new("c", "F32", &[1, 1], vec![0; 4])], 0);
    std::fs::write(folder.path().join("model-00001.safetensors"), other).unwrap();
    let error = refused(folder.path(), "tensor=b");
    assert!(matches!(&error, AttachError::File(error) if error.kind == FileErrorKind::Disagree), "{error}");
}

#[test]
fn a_folder_with_one_file_needs_no_index() {
    let rows: Vec<u8> = (0..=255).cycle().take(900).collect();
    let folder = folder();
    let tensors = [Tensor::new("embed", "U8", &[9, 100], rows.clone())];
    std::fs::write(folder.path().join("model.safetensors"), safetensors(&tensors, 1)).unwrap();
    assert_eq!(stored(&open(folder.path(), ""), "embed"), rows);
    std::fs::write(folder.path().join("other.safetensors"), safetensors(&tensors, 0)).unwrap();
    assert!(matches!(refused(folder.path(), ""), AttachError::File(error) if error.kind == FileErrorKind::Unsupported));
}

#[test]
fn links_out_of_the_folder_are_followed_if_that_is_said() {
    let rows: Vec<u8> = (0..=255).cycle().take(900).collect();
    let (folder, elsewhere) = (folder(), folder());
    checkpoint(folder.path(), &[vec![Tensor::new("embed", "U8", &[9, 100], rows.clone())]]);
    let (file, target) = (folder.path().join("model-00000.safetensors"), elsewhere.path().join("f"));
    std::fs::copy(&file, &target).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    assert!(matches!(refused(folder.path(), ""), AttachError::File(error) if error.kind == FileErrorKind::Elsewhere));
    assert_eq!(stored(&open(folder.path(), "links=1"), "embed"), rows);
}

#[test]
fn rows_are_seen_as_several() {
    let mut random = fastrand::Rng::with_seed(9);
    let bytes = random_bytes(&mut random, 50 * 12 * 2);
    let folder = folder();
    checkpoint(folder.path(), &[vec![Tensor::new("per_layer.weight", "BF16", &[50, 12], bytes.clone())]]);
    let store = open(folder.path(), "tensor=t=per_layer.weight,dim=4");
    let table = store.tables().into_iter().next().unwrap();
    assert_eq!((table.rows, table.dim), (150, 4));
    // Layer 2 of token 17.
    assert_eq!(look_up(&store, "t", &[17i32 * 3 + 2], DType::BF16, 0), bytes[(17 * 12 + 8) * 2..][..8]);
    assert_eq!(stored(&store, "t"), bytes);
    let store = open(folder.path(), "tensor=t=per_layer.weight,dim=4,rows=30..33");
    assert_eq!(stored(&store, "t"), bytes[30 * 8..33 * 8]);
    for (wrong, hint) in
        [("dim=5", "no whole number of rows of 5"), ("dim=24", "no whole number"), ("rows=0..51", "it has 50 rows")]
    {
        let error = refused(folder.path(), &format!("tensor=t=per_layer.weight,{wrong}"));
        assert!(matches!(&error, AttachError::Stays { .. }) && error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn shards_that_do_not_make_a_table_are_refused_by_name() {
    let tensor = |number: u32, dtype, shape: &[u64]| {
        let bytes: u64 = shape.iter().product::<u64>() * if dtype == "BF16" { 2 } else { 1 };
        Tensor::new(format!("m.shard_{number}.weight"), dtype, shape, vec![1; bytes as usize])
    };
    let usual = || tensor(0, "I8", &[5, 8]);
    for (tensors, pattern, hint) in [
        (vec![usual(), tensor(2, "I8", &[5, 8])], "m.shard_{}.weight", "shard 1 of"),
        (vec![usual(), tensor(1, "I8", &[5, 8])], "m.shard_{3}.weight", "shard 2 of"),
        (vec![usual(), tensor(1, "I8", &[5, 7])], "m.shard_{}.weight", "\"m.shard_1.weight\" has rows of 7 × i8"),
        (vec![usual(), tensor(1, "BF16", &[5, 8])], "m.shard_{}.weight", "8 × bf16"),
        (vec![usual(), tensor(1, "I8", &[6, 8])], "m.shard_{}.weight", "has 6 rows"),
        (vec![usual(), tensor(1, "I8", &[4, 8]), tensor(2, "I8", &[5, 8])], "m.shard_{}.weight", "only the last"),
    ] {
        let folder = folder();
        checkpoint(folder.path(), &[tensors]);
        for named in [String::new(), "t=".to_owned()] {
            let error = refused(folder.path(), &format!("tensor={named}{pattern}"));
            assert!(
                matches!(error, AttachError::Shards { .. }) && error.to_string().contains(hint),
                "{pattern}: {error}"
            );
        }
        // Without a pattern they are left out.
        if hint != "shard 2 of" {
            let error = refused(folder.path(), "");
            assert!(matches!(&error, AttachError::Nothing { .. }), "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
    let folder = folder();
    checkpoint(folder.path(), &[vec![usual(), tensor(1, "I8", &[5, 8])]]);
    for (properties, hint) in [
        ("scales=a", "scales= is said of a tensor"),
        ("dim=3,tensor=x", "dim= is said of a tensor"),
        ("tensor=a,dim=2,dim=3", "dim is given twice"),
        ("tensor=a,rows=3..3", "LO..HI"),
        ("tensor=a,round=i8", "f32, f16 or bf16"),
        ("workers=65", "1 to 64"),
        ("resident=2", "0 or 1"),
    ] {
        let error = crate::files::try_open(folder.path(), properties).unwrap_err().to_string();
        assert!(error.contains(hint), "{properties}: {error}");
    }
}
