//! Samples of the shape of a published data set, of random numbers.

use std::path::Path;

use warprow_traces::FileError;
use warprow_traces::data::{DataBatch, DataFeature, DataFormat, DataProgress, DataShape, DataWriteOptions, DataWriter};

use crate::published::PublishedData;
use crate::random::{SeededRandom, mix_all};
use crate::{IdShuffle, PowerLaw};

/// Samples with an id of each sparse feature of a published data set, and with its dense features and label.
///
/// The ids of a feature follow a power law over its rows; which of them are frequent is a shuffle. Dense features are counts: ⌊eˣ⌋ − 1 of a
/// uniform x from 0 to 7. One of four labels is 1. All of it comes from the seed, sample by sample, so that a sample is what it is whatever
/// the size of batches.
#[derive(Clone, Debug)]
pub struct GeneratedData {
    data: PublishedData,
    laws: Vec<(PowerLaw, IdShuffle)>,
    rows: Vec<u64>,
    seed: u64,
}

impl GeneratedData {
    /// Samples of `data` with ids by a power law with exponent `alpha`. `scale`, at least 1, divides the rows of tables, of which each keeps
    /// one at least. `None` if there is no such law.
    pub fn new(data: PublishedData, scale: u64, alpha: f64, seed: u64) -> Option<Self> {
        let rows: Vec<u64> = data
            .features()
            .iter()
            .map(|(_, rows)| rows.checked_div(scale).map(|rows| rows.max(1)))
            .collect::<Option<_>>()?;
        let laws = (0..)
            .zip(&rows)
            .map(|(nth, &rows)| Some((PowerLaw::new(rows, alpha)?, IdShuffle::new(rows, mix_all([seed, nth])))));
        Some(Self { data, laws: laws.collect::<Option<_>>()?, rows, seed })
    }

    /// How many ids each feature has.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// What each sample has.
    pub fn shape(&self) -> DataShape {
        let features = self.data.features().into_iter();
        DataShape {
            labels: vec![self.data.label().to_owned()],
            dense: self.data.dense(),
            features: features.map(|(name, _)| DataFeature { name, hotness: Some(1) }).collect(),
        }
    }

    /// Samples from number `first` on.
    pub fn batch(&self, first: u64, samples: usize) -> DataBatch {
        let features = self.laws.len();
        let dense = self.data.dense().len();
        let mut labels = Vec::with_capacity(samples);
        let mut floats = Vec::with_capacity(samples * dense);
        let mut ids = vec![0; samples * features];
        for sample in 0..samples {
            let mut random = SeededRandom::new(mix_all([self.seed, first + sample as u64]));
            labels.push(if random.below(4) == 0 { 1.0 } else { 0.0 });
            floats.extend((0..dense).map(|_| (random.unit() * 7.0).exp().floor() as f32 - 1.0));
            for (feature, (law, shuffle)) in self.laws.iter().enumerate() {
                ids[feature * samples + sample] = shuffle.id(law.sample(&mut random)) as i64;
            }
        }
        let offsets = (0..=ids.len() as i64).collect();
        DataBatch::new((first, samples, features), labels, floats, ids, offsets).unwrap_or_default()
    }

    /// Writes the first `samples` samples to the file `out`. Returns whether all were written: if `progress` breaks, nothing is left behind.
    pub fn write(
        &self,
        out: &Path,
        to: DataFormat,
        samples: u64,
        options: &DataWriteOptions,
        progress: &mut DataProgress<'_>,
    ) -> Result<bool, FileError> {
        const BATCH: u64 = 8192;
        let mut writer = DataWriter::create(out, to, &self.shape(), options)?;
        let mut first = 0;
        while first < samples {
            let count = BATCH.min(samples - first);
            writer.write(&self.batch(first, count as usize))?;
            first += count;
            if progress(first, Some(samples)).is_break() {
                return Ok(false);
            }
        }
        writer.finish().map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_those_of_the_seed_whatever_the_batch() {
        for data in PublishedData::ALL {
            let generated = |seed| GeneratedData::new(data, 1000, 1.05, seed).unwrap();
            let whole = generated(3).batch(0, 1000);
            assert_eq!((whole.samples(), whole.features()), (1000, data.features().len()));
            assert_eq!(whole.dense().len(), 1000 * data.dense().len());
            let part = generated(3).batch(400, 100);
            for feature in 0..whole.features() {
                let rows = generated(3).rows()[feature];
                assert_eq!(part.feature(feature), &whole.feature(feature)[400..500]);
                assert!(whole.feature(feature).iter().all(|&id| (0..rows as i64).contains(&id)));
            }
            assert_eq!(part.labels(), &whole.labels()[400..500]);
            assert_ne!(generated(4).batch(0, 1000).ids(), whole.ids());
            let clicks = whole.labels().iter().sum::<f32>();
            assert!((180.0..320.0).contains(&clicks), "{clicks}");
            assert!(whole.dense().iter().all(|&count| (0.0..1097.0).contains(&count) && count.fract() == 0.0));
        }
        assert!(GeneratedData::new(PublishedData::Avazu, 0, 1.0, 1).is_none());
        assert!(GeneratedData::new(PublishedData::Avazu, 1, f64::NAN, 1).is_none());
    }

    #[test]
    fn frequent_ids_are_as_frequent_as_the_law_says() {
        let data = GeneratedData::new(PublishedData::CriteoKaggle, 1, 1.05, 5).unwrap();
        let batch = data.batch(0, 20_000);
        // The third feature has the most rows.
        let mut counts = std::collections::HashMap::new();
        batch.feature(2).iter().for_each(|id| *counts.entry(id).or_insert(0u32) += 1);
        let most = f64::from(*counts.values().max().unwrap()) / 20_000.0;
        let law = PowerLaw::new(10_131_227, 1.05).unwrap().share_of_first(1);
        assert!((most - law).abs() < 4.0 * (law / 20_000.0).sqrt(), "{most}, not {law}");
    }
}
