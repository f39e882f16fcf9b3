use half::{bf16, f16};
use warprow_formats::ScaleError;
use warprow_layout::DType;
use warprow_store::{AttachError, Store};

use crate::files::{Tensor, checkpoint, folder, look_up, open, random_bytes, refused, stored};

/// E4M3 by its definition: exact in an `f64`.
fn e4m3(code: u8) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => sign * mantissa * 2f64.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f64.powi(exponent - 10),
    }
}

/// E8M0, with 0 for 0.
fn e8m0(byte: u8) -> f64 {
    match byte {
        0 => 0.0,
        255 => f64::NAN,
        _ => 2f64.powi(i32::from(byte) - 127),
    }
}

fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Outputs of the numbers `wanted`, compared bit by bit; a NaN is any NaN.
fn compare(store: &Store, table: &str, ids: &[i64], wanted: &[f32], what: &str) {
    for dram in [0, 1 << 20] {
        let rows = look_up(store, table, ids, DType::F32, dram);
        for (at, (got, &wanted)) in rows.as_chunks::<4>().0.iter().zip(wanted).enumerate() {
            let got = f32::from_le_bytes(*got);
            let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
            assert!(same, "{what}: element {at}: {got}, not {wanted}");
        }
        let rows = look_up(store, table, ids, DType::BF16, dram);
        for (at, (got, &wanted)) in rows.as_chunks::<2>().0.iter().zip(wanted).enumerate() {
            let (got, wanted) = (bf16::from_le_bytes(*got), bf16::from_f32(wanted));
            let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
            assert!(same, "{what}: element {at} as bf16: {got}, not {wanted}");
        }
    }
}

const WAYS: [&str; 5] = ["direct=0", "direct=0,resident=1", "direct=1", "direct=1,resident=1", ""];

/// `properties` in each way of reading that this machine has.
fn each_way(folder: &std::path::Path, properties: &str, mut each: impl FnMut(&Store, &str)) {
    for way in WAYS {
        let properties =
            [properties, way].iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join(",");
        match crate::files::try_open(folder, &properties) {
            Err(error) if way.starts_with("direct=1") && error.to_string().contains("past the page cache") => {
                eprintln!("skipped: {error}");
            }
            store => each(&store.unwrap_or_else(|error| panic!("{properties}: {error}")), &properties),
        }
    }
}

fn some_ids(random: &mut fastrand::Rng, rows: u64) -> Vec<i64> {
    (0..40).map(|_| random.i64(0..rows as i64)).collect()
}

#[test]
fn e4m3_with_a_power_of_two_for_each_32() {
    let mut random = fastrand::Rng::with_seed(41);
    let (rows, dim) = (97u64, 256u64);
    let codes = random_bytes(&mut random, (rows * dim) as usize);
    // Usual ones, and each byte there is.
    let mut scales: Vec<u8> = (0..rows * dim / 32).map(|_| random.u8(110..130)).collect();
    scales.iter_mut().zip(0..=255).for_each(|(scale, byte)| *scale = byte);
    let folder = folder();
    // In other files, at odd bytes.
    let files = [
        vec![Tensor::new("norm", "F32", &[3], vec![0; 12])],
        vec![Tensor::new("x.embed.scale", "F8_E8M0", &[rows, dim / 32], scales.clone())],
        vec![Tensor::new("x.embed.weight", "F8_E4M3", &[rows, dim], codes.clone())],
    ];
    checkpoint(folder.path(), &files);
    let row = |id: i64| {
        let at = id as usize * dim as usize;
        (&codes[at..][..dim as usize], &scales[id as usize * 8..][..8])
    };
    each_way(folder.path(), "", |store, how| {
        let table = store.tables().into_iter().next().unwrap();
        assert_eq!((&*table.name, table.dtype, table.dim), ("x.embed.weight", DType::Mxfp8, 256));
        assert_eq!(store.tables().len(), 1, "its scales are no table");
        let ids = [some_ids(&mut random, rows), (0..35).collect()].concat();
        let numbers = |id: &i64| {
            let (codes, scales) = row(*id);
            let value = |(at, &code): (usize, &u8)| (e4m3(code) * e8m0(scales[at / 32])) as f32;
            codes.iter().enumerate().map(value).collect::<Vec<_>>()
        };
        let wanted: Vec<f32> = ids.iter().flat_map(numbers).collect();
        compare(store, &table.name, &ids, &wanted, how);
        // As they are: the row, then its scales.
        let raw: Vec<u8> = ids.iter().flat_map(|&id| [row(id).0, row(id).1].concat()).collect();
        assert_eq!(look_up(store, &table.name, &ids, DType::Mxfp8, 3000), raw, "{how}");
        assert_eq!(
            stored(store, &table.name),
            (0..rows as i64).flat_map(|id| [row(id).0, row(id).1].concat()).collect::<Vec<_>>()
        );
    });
    // Without them, if that is asked for.
    let store = open(folder.path(), "tensor=w=x.embed.weight,scales=");
    assert_eq!(store.tables()[0].dtype, DType::F8E4M3);
    assert_eq!(stored(&store, "w"), codes);
    // Named, and cut.
    each_way(folder.path(), "tensor=w=x.*.weight,scales=x.*.scale,rows=20..90", |store, how| {
        let wanted: Vec<u8> = (20..90).flat_map(|id| [row(id).0, row(id).1].concat()).collect();
        assert_eq!(stored(store, "w"), wanted, "{how}");
    });
}

#[test]
fn e4m3_with_one_scale_and_with_one_a_row() {
    let mut random = fastrand::Rng::with_seed(42);
    let (rows, dim) = (61u64, 160u64);
    let codes: Vec<Vec<u8>> = (0..3).map(|_| random_bytes(&mut random, (rows * dim) as usize)).collect();
    let scale = bf16::from_f32(0.000_199_317_93);
    let halves: Vec<u8> = (0..rows).flat_map(|row| f16::from_f32(0.25 + row as f32 / 128.0).to_le_bytes()).collect();
    let inverse: Vec<u8> = (0..rows).flat_map(|row| (row as f32 * 0.1 + 0.01).to_le_bytes()).collect();
    let folder = folder();
    let shard =
        |number: usize| Tensor::new(format!("t.shard_{number}.weight"), "F8_E4M3", &[rows, dim], codes[number].clone());
    let files = [
        vec![shard(1), Tensor::new("t.weight_scale", "BF16", &[1], scale.to_le_bytes().to_vec()), shard(0)],
        vec![
            Tensor::new("a.weight", "F8_E4M3", &[rows, dim], codes[2].clone()),
            Tensor::new("a.weight_scale", "F16", &[rows, 1], halves),
        ],
        vec![
            Tensor::new("b.weight", "F8_E4M3", &[rows, dim], codes[2].clone()),
            Tensor::new("b.weight_scale_inv", "F32", &[rows], inverse),
            Tensor::new("c.weight", "F8_E4M3", &[rows, dim], codes[2].clone()),
            Tensor::new("c.scale", "F32", &[], 0.000_2f32.to_le_bytes().to_vec()),
        ],
    ];
    checkpoint(folder.path(), &files);
    let both = [&codes[0][..], &codes[1]].concat();
    each_way(folder.path(), "", |store, how| {
        let mut names: Vec<String> = store.tables().into_iter().map(|table| table.name).collect();
        names.sort();
        assert_eq!(names, ["a.weight", "b.weight", "c.weight", "t.weight"]);
        assert!(store.tables().iter().all(|table| table.dtype == DType::F8E4M3S));
        let ids = some_ids(&mut random, rows * 2);
        let numbers = |codes: &[u8], ids: &[i64], scale: &dyn Fn(i64) -> f32| -> Vec<f32> {
            let row = |&id: &i64| &codes[id as usize * dim as usize..][..dim as usize];
            ids.iter().flat_map(|id| row(id).iter().map(|&code| (e4m3(code) * f64::from(scale(*id))) as f32)).collect()
        };
        compare(store, "t.weight", &ids, &numbers(&both, &ids, &|_| scale.to_f32()), how);
        // What vLLM and PyTorch compute in bf16: the factors are bf16, and so is their product.
        let rows_of = look_up(store, "t.weight", &ids, DType::BF16, 0);
        let product = |code: u8| bf16::from_f32(bf16::from_f64(e4m3(code)).to_f32() * scale.to_f32());
        let wanted = ids.iter().flat_map(|&id| &both[id as usize * dim as usize..][..dim as usize]);
        for (got, &code) in rows_of.as_chunks::<2>().0.iter().zip(wanted) {
            let (got, wanted) = (bf16::from_le_bytes(*got), product(code));
            assert!(got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan());
        }
        let ids = some_ids(&mut random, rows);
        let half = |id: i64| f16::from_f32(0.25 + id as f32 / 128.0).to_f32();
        compare(store, "a.weight", &ids, &numbers(&codes[2], &ids, &half), how);
        compare(store, "b.weight", &ids, &numbers(&codes[2], &ids, &|id| id as f32 * 0.1 + 0.01), how);
        compare(store, "c.weight", &ids, &numbers(&codes[2], &ids, &|_| 0.000_2), how);
        let raw = look_up(store, "t.weight", &ids, DType::F8E4M3S, 500);
        let row = |id: i64| [&both[id as usize * 160..][..160], &scale.to_f32().to_le_bytes()].concat();
        assert_eq!(raw, ids.iter().flat_map(|&id| row(id)).collect::<Vec<_>>());
    });
    // A scale that bf16 does not hold, as vLLM rounds it for outputs of bf16.
    let store = open(folder.path(), "tensor=c.weight,round=bf16");
    let raw = look_up(&store, "c.weight", &[5i64], DType::F8E4M3S, 0);
    assert_eq!(raw[160..], bf16::from_f32(0.000_2).to_f32().to_le_bytes());
    assert_ne!(raw[160..], 0.000_2f32.to_le_bytes());
}

#[test]
fn e2m1_with_two_scales() {
    let mut random = fastrand::Rng::with_seed(43);
    let (rows, dim) = (45u64, 160u64);
    let shards = 3;
    let pairs: Vec<u8> = random_bytes(&mut random, (shards * rows * dim / 2) as usize);
    let blocks: Vec<u8> = random_bytes(&mut random, (shards * rows * dim / 16) as usize);
    let global = 0.000_713_f32;
    let part = |all: &[u8], number: u64| {
        let each = all.len() / shards as usize;
        all[number as usize * each..][..each].to_vec()
    };
    let mut files: Vec<Vec<Tensor>> = (0..shards)
        .map(|number| {
            vec![
                Tensor::new(
                    format!("n.shard_{number}.weight_scale"),
                    "F8_E4M3",
                    &[rows, dim / 16],
                    part(&blocks, number),
                ),
                Tensor::new(format!("n.shard_{number}.weight"), "U8", &[rows, dim / 2], part(&pairs, number)),
            ]
        })
        .collect();
    files[1].push(Tensor::new("n.weight_scale_2", "F32", &[1], global.to_le_bytes().to_vec()));
    let folder = folder();
    checkpoint(folder.path(), &files);
    let row = |id: i64| (&pairs[id as usize * 80..][..80], &blocks[id as usize * 10..][..10]);
    let wanted_by = |ids: &[i64], global: f32| -> Vec<f32> {
        let numbers = |&id: &i64| {
            let (pairs, blocks) = row(id);
            let value = |at: usize| {
                let scale = (e4m3(blocks[at / 16]) * f64::from(global)) as f32;
                (e2m1(pairs[at / 2] >> (at % 2 * 4) & 15) * f64::from(scale)) as f32
            };
            (0..dim as usize).map(value).collect::<Vec<_>>()
        };
        ids.iter().flat_map(numbers).collect()
    };
    each_way(folder.path(), "", |store, how| {
        let table = store.tables().into_iter().next().unwrap();
        assert_eq!((&*table.name, table.dtype, table.dim, table.rows), ("n.weight", DType::Nvfp4, 160, 135));
        assert_eq!(store.tables().len(), 1);
        let ids = some_ids(&mut random, rows * shards);
        compare(store, "n.weight", &ids, &wanted_by(&ids, global), how);
        let raw: Vec<u8> = ids.iter().flat_map(|&id| [row(id).0, row(id).1, &global.to_le_bytes()].concat()).collect();
        assert_eq!(look_up(store, "n.weight", &ids, DType::Nvfp4, 0), raw);
    });
    // One that divides.
    let ids = [0i64, 134, 60];
    let store = open(
        folder.path(),
        "tensor=n=n.shard_{}.weight,scales=n.shard_{}.weight_scale,global=1/n.weight_scale_2,resident=1",
    );
    compare(&store, "n", &ids, &wanted_by(&ids, global.recip()), "divides");
    let store = open(folder.path(), "tensor=n=n.shard_{}.weight,rows=44..91");
    let ids = [0i64, 1, 45, 46];
    compare(&store, "n", &ids, &wanted_by(&ids.map(|id| id + 44), global), "cut");
}

#[test]
fn scales_that_do_not_fit_are_refused_by_name() {
    let codes = || Tensor::new("x.weight", "F8_E4M3", &[6, 64], vec![0x38; 384]);
    let pairs = || Tensor::new("x.weight", "U8", &[6, 32], vec![0x38; 192]);
    let tensor = |name: &str, dtype, shape: &[u64]| {
        let bytes = shape.iter().product::<u64>()
            * [("F32", 4), ("F16", 2)].iter().find(|it| it.0 == dtype).map_or(1, |it| it.1);
        Tensor::new(name, dtype, shape, vec![0x20; bytes as usize])
    };
    for (tensors, hint) in [
        (vec![codes(), tensor("x.scale", "F8_E8M0", &[6, 3])], "F8_E8M0 [6, 3]; rows of 64 F8_E4M3 need"),
        (vec![codes(), tensor("x.scale", "F8_E8M0", &[5, 2])], "F8_E8M0 [5, 2]"),
        (vec![codes(), tensor("x.weight_scale_inv", "F32", &[1, 2])], "or a number of F32"),
        (vec![codes(), tensor("x.weight_scale", "I8", &[6, 2])], "I8 [6, 2]"),
        (vec![codes(), tensor("x.my_scale", "F32", &[1])], "\"x.my_scale\" beside it"),
        (vec![pairs(), tensor("x.weight_scale", "F8_E4M3", &[6, 4])], "have a global scale too"),
        (
            vec![pairs(), tensor("x.weight_scale", "F8_E4M3", &[6, 2]), tensor("x.weight_scale_2", "F32", &[1])],
            "a scale for each 8",
        ),
        (
            vec![pairs(), tensor("x.weight_scale", "F8_E4M3", &[6, 4]), tensor("x.weight_scale_2", "F32", &[2])],
            "is one number",
        ),
        (
            vec![pairs(), tensor("x.weight_scale", "F8_E4M3", &[6, 4]), tensor("x.weight_global_scale", "F32", &[1])],
            "say which, global=x.weight_global_scale or global=1/x.weight_global_scale",
        ),
        (vec![pairs(), tensor("x.weight_scale", "F16", &[3, 4])], "\"x.weight_scale\" beside it"),
    ] {
        let folder = folder();
        checkpoint(folder.path(), &[tensors]);
        let error = refused(folder.path(), "tensor=x.weight");
        assert!(matches!(error, AttachError::Scales { .. }) && error.to_string().contains(hint), "{hint}: {error}");
        // Left out, not taken for what they are not.
        let opened = crate::files::try_open(folder.path(), "");
        assert!(opened.is_err() || !opened.unwrap().tables().iter().any(|table| table.name == "x.weight"), "{hint}");
    }
    let folder = folder();
    let nan = Tensor::new("n", "F32", &[1], f32::NAN.to_le_bytes().to_vec());
    checkpoint(
        folder.path(),
        &[vec![codes(), nan, tensor("i", "I8", &[6, 64]), tensor("s1", "F32", &[1]), tensor("s2", "F32", &[1])]],
    );
    for (properties, wanted) in [
        ("tensor=x.weight,scales=absent", "no tensor \"absent\""),
        ("tensor=x.weight,scales=s?", "tensors \"s1\" and \"s2\" match"),
        ("tensor=x.weight,scales=n", "is NaN"),
        ("tensor=x.weight,scales=s1,global=s2", "leave it out"),
        ("tensor=i,scales=s1", "rows are of type i8"),
        ("tensor=x.weight,global=s1", "the scales that"),
    ] {
        let error = refused(folder.path(), properties);
        let AttachError::Scales { source, .. } = &error else { panic!("{properties}: {error}") };
        assert!(error.to_string().contains(wanted), "{properties}: {error}");
        assert!(!matches!(**source, ScaleError::Read(_)));
    }
}
