//! Some samples of a data set.

/// Whole samples: labels, dense features, and the ids of each sparse feature.
///
/// Labels and dense features stand sample by sample. Ids stand feature by feature, in a feature sample by sample, which is the order in
/// which a look-up of several features takes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DataBatch {
    pub(super) first: u64,
    pub(super) samples: usize,
    pub(super) features: usize,
    pub(super) labels: Vec<f32>,
    pub(super) dense: Vec<f32>,
    pub(super) ids: Vec<i64>,
    pub(super) offsets: Vec<i64>,
    /// What the offsets are of: samples, and the ids that each sample has of each feature. Empty: of lists that differ.
    pub(super) even: Vec<usize>,
}

impl DataBatch {
    /// A batch of samples, of which the first is number `first` of its data set: `labels` and `dense` sample by sample, `ids` and `offsets` of
    /// `features` sparse features as [`ids`](Self::ids) and [`offsets`](Self::offsets) say. `None` if these do not belong together.
    pub fn new(
        (first, samples, features): (u64, usize, usize),
        labels: Vec<f32>,
        dense: Vec<f32>,
        ids: Vec<i64>,
        offsets: Vec<i64>,
    ) -> Option<Self> {
        let bags = samples.checked_mul(features)?;
        let is_whole = |floats: &[f32]| floats.len().checked_rem(samples).map_or(floats.is_empty(), |rest| rest == 0);
        let ascend = offsets.first() == Some(&0) && offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = offsets.len() == bags + 1 && offsets.last().is_some_and(|&end| end == ids.len() as i64);
        (is_whole(&labels) && is_whole(&dense) && ascend && ends).then_some(Self {
            first,
            samples,
            features,
            labels,
            dense,
            ids,
            offsets,
            even: Vec::new(),
        })
    }

    /// The number of samples, B: at least one of a batch that a reader gave.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The number of the first sample in the data set, from 0.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The number of sparse features, F.
    pub fn features(&self) -> usize {
        self.features
    }

    /// B × labels, sample by sample.
    pub fn labels(&self) -> &[f32] {
        &self.labels
    }

    /// B × dense features, sample by sample.
    pub fn dense(&self) -> &[f32] {
        &self.dense
    }

    /// The ids of all features: those of feature 0, sample by sample, then those of feature 1.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// F·B + 1 entries: where the ids of sample b of feature f begin in [`ids`](Self::ids), entry f·B + b; the last is the number of
    /// ids.
    pub fn offsets(&self) -> &[i64] {
        &self.offsets
    }

    /// The ids of one feature, sample by sample; none of a feature that there is not.
    pub fn feature(&self, feature: usize) -> &[i64] {
        let at = |sample: usize| self.offsets.get(sample).map(|&at| at as usize);
        let first = feature.saturating_mul(self.samples);
        match (feature < self.features, at(first), at(first + self.samples)) {
            (true, Some(begin), Some(end)) => self.ids.get(begin..end).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The ids of one sample of one feature; none of a sample or a feature that there is not.
    pub fn list(&self, feature: usize, sample: usize) -> &[i64] {
        if feature >= self.features || sample >= self.samples {
            return &[];
        }
        match self.offsets.get(feature * self.samples + sample..).and_then(|rest| rest.first_chunk::<2>()) {
            Some(&[begin, end]) => self.ids.get(begin as usize..end as usize).unwrap_or_default(),
            None => &[],
        }
    }

    /// Address and number of the labels, the dense features, the ids and the offsets, for who reads and writes there by address as long as
    /// the batch lives: what a reader makes in this memory later is made anew.
    pub fn addresses(&mut self) -> [(usize, usize); 4] {
        // Offsets that somebody else writes to are not those of the next batch.
        self.even.clear();
        let Self { labels, dense, ids, offsets, .. } = self;
        [
            (labels.as_mut_ptr() as usize, labels.len()),
            (dense.as_mut_ptr() as usize, dense.len()),
            (ids.as_mut_ptr() as usize, ids.len()),
            (offsets.as_mut_ptr() as usize, offsets.len()),
        ]
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        (self.labels.capacity() + self.dense.capacity()) * 4 + (self.ids.capacity() + self.offsets.capacity()) * 8
    }
}
