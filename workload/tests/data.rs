//! A data set into look-ups: batches of files, looked up by the host executor, every row compared.

use std::ops::ControlFlow;

use warprow_layout::DType;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Output, OutputRows, PlanOptions, Pooling};
use warprow_store::{
    CreateDrive, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, TableLoad, TableSpec,
};
use warprow_traces::data::{DataFormat, DataOptions, DataReader, DataSpec, DataWriteOptions};
use warprow_workload::{ContentOracle, GeneratedData, PublishedData, TableContent};

const DIM: u32 = 4;

#[test]
fn batches_of_every_format_are_looked_up() {
    let seed = 11;
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let generated = GeneratedData::new(PublishedData::Avazu, 10_000, 1.05, seed).unwrap();
    let device =
        Device::open(&"emulated:data-sets?backing=ram&size=64M".parse().unwrap(), CreateDrive::IfMissing).unwrap();
    let proposal = FormatProposal::new(&[device], FormatSettings::default()).unwrap();
    let store = proposal.run(&FormatConsent::None, &mut |_, _| {}).unwrap();
    let names: Vec<String> = generated.shape().features.into_iter().map(|feature| feature.name).collect();
    let tables = (0..).zip(generated.rows());
    let oracles: Vec<_> = tables.map(|(nth, &rows)| ContentOracle::new(seed, nth, rows, DIM, DType::F32)).collect();
    let specs: Vec<_> =
        names.iter().zip(&oracles).map(|(name, oracle)| TableSpec::new(name, oracle.rows(), DIM, DType::F32)).collect();
    let loads: Vec<_> = specs.iter().zip(&oracles).map(|(spec, oracle)| TableLoad::new(spec, oracle)).collect();
    store.load("m", &loads, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let host = HostExecutor::attach(&store, HostOptions::default()).unwrap();
    let features: Vec<_> = names.iter().map(|name| Feature::new(name, name).pooling(Pooling::Sum)).collect();
    let plan = host.plan(&features, PlanOptions::default()).unwrap();
    let mut slot = plan.slot().unwrap();
    for format in DataFormat::ALL {
        let path = dir.path().join(format.name());
        let mut go_on = |_, _| ControlFlow::Continue(());
        assert!(generated.write(&path, format, 500, &DataWriteOptions::default(), &mut go_on).unwrap());
        let mut spec = DataSpec { format: Some(format), rows: generated.rows().to_vec(), ..DataSpec::new(&path) };
        if format == DataFormat::Raw {
            spec.labels = warprow_traces::data::DataColumns::Count(1);
            spec.hotness = vec![1; names.len()];
        }
        let options = DataOptions { batch: 192, ..DataOptions::default() };
        let mut seen = 0;
        for batch in DataReader::open(&spec, &options).unwrap() {
            let batch = batch.unwrap();
            let samples = batch.samples();
            let mut rows = vec![f32::NAN; samples * plan.width()];
            let ids = Batch::new(batch.ids(), samples).with_offsets(batch.offsets());
            slot.lookup(&ids, &mut Output::new(OutputRows::F32(&mut rows), plan.width())).unwrap();
            let mut wanted = [0; DIM as usize * 4];
            for sample in 0..samples {
                for (feature, oracle) in oracles.iter().enumerate() {
                    let id = generated.batch(seen + sample as u64, 1).feature(feature)[0];
                    oracle.fill(id as u64, &mut wanted);
                    let at = sample * plan.width() + feature * DIM as usize;
                    // A sum begins with +0, which makes +0 of -0.
                    let wanted = wanted.as_chunks().0.iter().map(|&it| (f32::from_le_bytes(it) + 0.0).to_bits());
                    let found = rows[at..at + DIM as usize].iter().map(|it| it.to_bits());
                    assert!(found.eq(wanted), "{}: sample {sample} of {seen}, feature {feature}", format.name());
                }
            }
            seen += samples as u64;
        }
        assert_eq!(seen, 500, "{}", format.name());
    }
}
