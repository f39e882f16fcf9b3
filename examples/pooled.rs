//! Looks up three features over two tables, each bag of ids pooled to one row: a mean that skips padding and missing ids, a
//! weighted sum, and a sum in which a missing id counts as the default row. Every sum is computed again without Warprow.
//!
//!     cargo run -p warprow-examples --bin pooled

use std::ops::ControlFlow;

use anyhow::{Context, Result, ensure};
use warprow_lookup::{
    Batch, BoundsCheck, Feature, HostExecutor, HostOptions, LookupReport, MissingPolicy, Output, OutputRows,
    PlanOptions, Pooling,
};
use warprow_store::{
    CreateDrive, DType, Device, FormatConsent, FormatProposal, FormatSettings, LoadOptions, Store, TableLoad, TableSpec,
};

/// Samples of a batch: each has one bag of each feature.
const SAMPLES: usize = 200;
const ROWS: i64 = 1_000;
/// Elements of a row, by table.
const DIMS: [(&str, usize); 2] = [("user", 8), ("item", 4)];
/// The row of ids that the tables do not have.
const DEFAULT: f32 = 0.5;
const PADDING: i64 = 0;

fn row(table: &str, id: i64) -> Vec<f32> {
    let (place, dim) = if table == "user" { (1.0, DIMS[0].1) } else { (100.0, DIMS[1].1) };
    (0..dim).map(|column| place + id as f32 / 8.0 + column as f32).collect()
}

fn load(store: &Store) -> Result<()> {
    let spec = |(name, dim): (&str, usize)| TableSpec {
        default_row: Some([DEFAULT.to_le_bytes()].repeat(dim).concat()),
        ..TableSpec::new(name, ROWS as u64, dim as u32, DType::F32)
    };
    let specs = DIMS.map(spec);
    let rows_of = |name| -> Vec<u8> { (0..ROWS).flat_map(|id| row(name, id)).flat_map(f32::to_le_bytes).collect() };
    let rows = DIMS.map(|(name, _)| rows_of(name));
    let tables = [TableLoad::new(&specs[0], &rows[0]), TableLoad::new(&specs[1], &rows[1])];
    store.load("model", &tables, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// What a bag must become.
fn pooled(feature: &Feature, bag: &[(i64, f32)]) -> Vec<f32> {
    let mut sum = row(&feature.table, 0).iter().map(|_| 0.0).collect::<Vec<f32>>();
    let mut count = 0;
    for &(id, weight) in bag {
        let found = match (0..ROWS).contains(&id) {
            _ if feature.padding == Some(id.into()) => continue,
            true => row(&feature.table, id),
            false if feature.missing == Some(MissingPolicy::Skip) => continue,
            false => vec![DEFAULT; sum.len()],
        };
        let weight = if feature.weighted { weight } else { 1.0 };
        sum.iter_mut().zip(found).for_each(|(sum, x)| *sum += weight * x);
        count += 1;
    }
    if feature.pooling == Pooling::Mean && count > 0 {
        sum.iter_mut().for_each(|sum| *sum /= count as f32);
    }
    sum
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let address = format!("emulated:{},size=64M", folder.path().join("a.drive").display()).parse()?;
    let drive = Device::open(&address, CreateDrive::IfMissing)?;
    let store = FormatProposal::new(&[drive], FormatSettings::default())?.run(&FormatConsent::None, &mut |_, _| {})?;
    load(&store)?;

    let features = [
        Feature::new("history", "item").pooling(Pooling::Mean).padding(PADDING.into()).missing(MissingPolicy::Skip),
        Feature::new("clicks", "user").pooling(Pooling::Sum).weighted(),
        Feature::new("query", "item").pooling(Pooling::Sum).missing(MissingPolicy::Default),
    ];
    let host = HostExecutor::attach(&store, HostOptions::default().with_dram_bytes(8 << 10))?;
    let options = PlanOptions::default().with_max(SAMPLES, 3 * SAMPLES * 5).with_bounds(BoundsCheck::Report);
    let plan = host.plan(&features, options)?;

    // Bags of 0 to 4 ids, those of the first feature first. Some ids are padding, and some are beyond the tables.
    let id = |n: usize| if n.is_multiple_of(7) { PADDING } else { (n as i64 * 389) % (ROWS + 50) };
    let bags: Vec<Vec<(i64, f32)>> = (0..features.len() * SAMPLES)
        .map(|bag| (0..bag % 5).map(|n| (id(5 * bag + n), 1.0 + n as f32 / 4.0)).collect())
        .collect();
    let ids: Vec<i64> = bags.iter().flatten().map(|&(id, _)| id).collect();
    let weights: Vec<f32> = bags.iter().flatten().map(|&(_, weight)| weight).collect();
    let ends = bags.iter().scan(0, |end, bag| {
        *end += bag.len() as i64;
        Some(*end)
    });
    let offsets: Vec<i64> = std::iter::once(0).chain(ends).collect();

    let mut sums = vec![0f32; SAMPLES * plan.width()];
    let batch = Batch::new(&ids, SAMPLES).with_offsets(&offsets).with_weights(&weights);
    let report: LookupReport =
        plan.slot()?.lookup(&batch, &mut Output::new(OutputRows::F32(&mut sums), plan.width()))?;

    // The output has one row for each sample: the bags of all features side by side.
    for (sample, row) in sums.chunks(plan.width()).enumerate() {
        for (index, feature) in features.iter().enumerate() {
            let wanted = pooled(feature, &bags[index * SAMPLES + sample]);
            let found = &row[plan.columns(index).context("the plan has the feature")?];
            ensure!(found == wanted, "{}, sample {sample}: {found:?} instead of {wanted:?}", feature.name);
        }
    }
    println!("pooled {} ids into {} bags of {} features", report.ids, bags.len(), features.len());
    println!("{} ids were padding, {} are not in their tables", report.padding, report.missing);
    let missing = report.first_missing.context("some ids are missing")?;
    println!("the first of these is id {} at position {}", missing.id, missing.position);
    println!("every sum and every mean is right");
    Ok(())
}
