//! Data sets in files: whatever stands there, batches whose parts belong together, or an error; and no more ids than bytes give.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warprow_fuzz::edit;
use warprow_traces::data::{DataBatch, DataFormat, DataOptions, DataReader, DataSpec, DataWriteOptions, DataWriter};

/// A folder of this process alone, in memory where there is such a place.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let above = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = above.join(format!("warprow-fuzz-data-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
});

/// A sound file of each format, with how it is named.
static SOUND: LazyLock<Vec<(DataFormat, String, Vec<u8>)>> = LazyLock::new(|| {
    let batch = || {
        let (labels, dense) = (vec![1.0, 0.0, 1.0], vec![0.5, -1.0, 2.0, 3.0, 4.0, 5.0]);
        DataBatch::new((0, 3, 2), labels, dense, vec![7, 8, 9, 1, 2, 3, 4], vec![0, 1, 2, 3, 5, 5, 7]).unwrap()
    };
    let mut sound = Vec::new();
    for format in DataFormat::ALL {
        let path = FOLDER.join(format!("sound.{}", format.name()));
        let settings = match format {
            DataFormat::Raw => ":labels=1,dense=2,hotness=1/2",
            DataFormat::Norm => ":rows=10/10",
            _ => "",
        };
        if format == DataFormat::Raw {
            let words = [1.0f32.to_bits(), 0, 0, 7, 1, 2];
            std::fs::write(&path, words.repeat(3).iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        } else {
            let shape = warprow_traces::data::DataShape {
                labels: vec!["label".into()],
                dense: vec!["dense0".into(), "dense1".into()],
                features: ["user", "item"]
                    .map(|name| warprow_traces::data::DataFeature { name: name.into(), hotness: None })
                    .to_vec(),
            };
            let options = DataWriteOptions { force: true, ..DataWriteOptions::default() };
            let mut writer = DataWriter::create(&path, format, &shape, &options).unwrap();
            writer.write(&batch()).unwrap();
            writer.finish().unwrap();
        }
        sound.push((format, settings.to_owned(), std::fs::read(&path).unwrap()));
    }
    sound
});

fuzz_target!(|data: &[u8]| {
    let Some((&how, data)) = data.split_first() else { return };
    let (format, settings, right) = &SOUND[usize::from(how >> 1) % SOUND.len()];
    let mut bytes = data.to_vec();
    if how & 1 != 0 {
        bytes.clone_from(right);
        edit(&mut bytes, data);
    }
    let path = FOLDER.join(format!("t.{}", format.name()));
    std::fs::write(&path, &bytes).unwrap();
    let spec: DataSpec = format!("{}:{}{settings}", format.name(), path.display()).parse().unwrap();
    let options = DataOptions { batch: 2, ..DataOptions::default() };
    let Ok(reader) = DataReader::open(&spec, &options) else { return };
    let shape = reader.shape().clone();
    for batch in reader {
        let Ok(batch) = batch else { return };
        let samples = batch.samples();
        assert!((1..=2).contains(&samples) && batch.features() == shape.features.len());
        assert_eq!(batch.labels().len(), samples * shape.labels.len());
        assert_eq!(batch.dense().len(), samples * shape.dense.len());
        let lists = (0..batch.features()).flat_map(|feature| (0..samples).map(move |sample| (feature, sample)));
        let ids: usize = lists.map(|(feature, sample)| batch.list(feature, sample).len()).sum();
        assert_eq!((ids, batch.offsets().len()), (batch.ids().len(), batch.features() * samples + 1));
    }
});
