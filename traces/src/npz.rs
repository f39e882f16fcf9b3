//! Archives of NumPy's arrays, of which those of integers are slots.

use warprow_formats::{FileError, FileErrorKind};

use crate::block::TraceBlock;
use crate::data::{DataBatch, DataColumns, DataFormat, DataSource, DataSpec};
use crate::sample_source::{Opened, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::TraceSpec;

/// Samples that are taken from the archive at once.
const SAMPLES: usize = 256;

struct Archive {
    source: DataSource,
    batch: DataBatch,
    samples: u64,
    /// Samples, and bytes, of the archive.
    all: u64,
    bytes: u64,
}

pub(crate) fn open(spec: &TraceSpec) -> Result<Opened, FileError> {
    let data = DataSpec { format: Some(DataFormat::Npz), features: spec.columns.clone(), ..DataSpec::new(&spec.path) };
    let source = DataSource::open(&DataSpec { dense: DataColumns::Named(Vec::new()), ..data }, SAMPLES)?;
    let slots: Vec<TraceSlot> =
        source.shape().features.iter().map(|it| TraceSlot { name: it.name.clone(), signed: true }).collect();
    if slots.is_empty() {
        let what = "it has no array of integers";
        return Err(FileError::new(FileErrorKind::Unsupported, &spec.path, what, "write the keys as int64"));
    }
    let bytes = std::fs::metadata(&spec.path).map_or(0, |file| file.len());
    let all = source.samples().unwrap_or(0);
    Ok(Opened { slots, source: Box::new(Archive { source, batch: DataBatch::default(), samples: 0, all, bytes }) })
}

impl SampleSource for Archive {
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        while !block.is_full() && self.source.fill(&mut self.batch)? {
            let batch = &self.batch;
            for sample in 0..batch.samples() {
                (0..batch.features()).for_each(|slot| {
                    block.push(batch.list(slot, sample).iter().map(|&key| key as u64));
                });
            }
            self.samples += batch.samples() as u64;
        }
        Ok(())
    }

    fn progress(&self) -> (u64, u64) {
        ((u128::from(self.bytes) * u128::from(self.samples) / u128::from(self.all.max(1))) as u64, self.bytes)
    }
}
