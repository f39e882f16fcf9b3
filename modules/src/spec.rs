//! What a module looks up, and where its rows lie, as a text.

use std::time::Duration;

use serde::Deserialize;
use warprow_gpu::{CacheAdmission, GpuOptions, PrefetchPriority};
use warprow_layout::DType;
use warprow_lookup::{CounterOptions, FailedRows, Feature, HostOptions, MaskMeaning, MissingPolicy, Pooling};

use crate::error::ModuleError;

/// What a module looks up. The Python package writes it (`warprow.torch._spec`), as JSON.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleSpec {
    /// Addresses of the store's drives.
    pub drives: Vec<String>,
    /// "cpu", or "cuda:" and a number.
    pub device: String,
    /// Options of the executor.
    pub options: ExecutorSpec,
    /// Features: all pooled, or one that is not.
    pub features: Vec<FeatureSpec>,
    /// Rows and elements of each feature's table.
    pub shapes: Vec<(u64, u32)>,
    /// The latest generation of the tables, when the module was made.
    pub generation: u64,
    /// Which row a missing id gets.
    pub missing: String,
    /// What becomes of rows that could not be read: "raise", "nan" or "mask".
    pub on_failure: String,
    /// What masks tell.
    pub mask: String,
    /// Type of the output.
    pub out: String,
    /// The most ids of one call; `None`: the plan grows.
    pub max_ids: Option<usize>,
    /// How many batches can be fetched ahead.
    pub prefetch: u32,
    /// Whether offsets have an entry past the last bag.
    pub has_last: bool,
    /// On a GPU: the scales of the first feature's table lie in memory of the process that wrote this.
    #[serde(default)]
    pub scales: Option<ScalesSpec>,
}

/// Where scales lie, in GPU memory.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ScalesSpec {
    /// Their address.
    pub address: u64,
    /// How many bytes there are.
    pub bytes: u64,
}

/// Options of an executor, by the names that they have in Python.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are those of `HostOptions` and `GpuOptions`")]
pub struct ExecutorSpec {
    pub dram_bytes: u64,
    pub hbm_bytes: u64,
    pub check_rows: bool,
    pub check_keys: bool,
    pub overlay_bytes: u64,
    pub adopting: bool,
    pub timeout: Option<f64>,
    /// Tables, and how many rows of each lie in GPU memory; of all others as many as their shares of `hbm_bytes` hold.
    #[serde(default)]
    pub hbm_rows: Vec<(String, u64)>,
    #[serde(default)]
    pub prefetch_multiprocessors: Option<u32>,
    /// "high" or "normal".
    #[serde(default)]
    pub prefetch_priority: PrioritySpec,
    #[serde(default)]
    pub cache_bytes: u64,
    /// Tables, and how many of `cache_bytes` each has to itself.
    #[serde(default)]
    pub cache_shares: Vec<(String, u64)>,
    /// `None`: as many as `GpuOptions` has by default.
    #[serde(default)]
    pub cache_batch_rows: Option<u64>,
    #[serde(default)]
    pub cache_admission: AdmissionSpec,
    /// On a GPU alone.
    #[serde(default)]
    pub cache_dram: bool,
    /// `None`: rows of `dram_bytes` lie in DRAM.
    #[serde(default)]
    pub peer_gpu: Option<u32>,
    /// 0: nothing is counted.
    #[serde(default)]
    pub counter_bytes: u64,
    /// `None`: as often as `CounterOptions` has by default.
    #[serde(default)]
    pub count_every: Option<u32>,
    /// `None`: no last touches are noted.
    #[serde(default)]
    pub touch_epoch: Option<u16>,
}

/// How kernels that fetch rows ahead rank among others.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PrioritySpec {
    /// They begin before others that wait.
    #[default]
    High,
    /// They wait as others do.
    Normal,
}

impl From<PrioritySpec> for PrefetchPriority {
    fn from(given: PrioritySpec) -> Self {
        match given {
            PrioritySpec::High => Self::High,
            PrioritySpec::Normal => Self::Normal,
        }
    }
}

/// Which rows a cache in GPU memory keeps.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum AdmissionSpec {
    /// "always", or "sketch".
    Named(String),
    /// Each row that was read with this probability.
    Probability(f64),
}

impl Default for AdmissionSpec {
    fn default() -> Self {
        Self::Named("always".to_owned())
    }
}

impl AdmissionSpec {
    fn admission(&self) -> Result<CacheAdmission, ModuleError> {
        match self {
            Self::Named(name) if name == "always" => Ok(CacheAdmission::Always),
            Self::Named(name) if name == "sketch" => Ok(CacheAdmission::Sketch),
            Self::Probability(chance) if *chance > 0.0 && *chance <= 1.0 => Ok(CacheAdmission::Probability(*chance)),
            Self::Named(name) => Err(Self::refused(&format!("{name:?}"))),
            Self::Probability(chance) => Err(Self::refused(&chance.to_string())),
        }
    }

    fn refused(given: &str) -> ModuleError {
        let text =
            format!("{given} is no admission: give \"always\", \"sketch\", or a probability above 0 and up to 1");
        ModuleError::invalid("cache_admission", text)
    }
}

/// A feature.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureSpec {
    /// The name by which errors call it.
    pub name: String,
    /// The table.
    pub table: String,
    /// "none", "sum" or "mean".
    pub pooling: String,
    /// Whether each row is multiplied by its id's weight.
    pub weighted: bool,
    /// An id that stands for no row.
    pub padding: Option<i128>,
}

impl FeatureSpec {
    /// The feature.
    pub fn feature(&self) -> Result<Feature, ModuleError> {
        let feature = Feature::new(&self.name, &self.table).pooling(pooling(&self.pooling)?);
        let feature = if self.weighted { feature.weighted() } else { feature };
        Ok(self.padding.iter().fold(feature, |feature, &id| feature.padding(id)))
    }
}

impl ExecutorSpec {
    fn timeout(&self) -> Result<Option<Duration>, ModuleError> {
        let timeout = self.timeout.map(Duration::try_from_secs_f64).transpose();
        timeout.map_err(|_| ModuleError::invalid("timeout", "no number of seconds from 0 on"))
    }

    /// Options of an executor on the host.
    ///
    /// # Errors
    /// [`ModuleError`] for options that make no sense, and for `cache_dram`, which is of executors on a GPU.
    pub fn on_host(&self) -> Result<HostOptions, ModuleError> {
        if self.cache_dram {
            let text = "rows of dram_bytes lie in the memory that the cache would take: leave cache_dram out, or attach on \"cuda\"";
            return Err(ModuleError::invalid("cache_dram", text));
        }
        let mut options = HostOptions::default().with_dram_bytes(self.dram_bytes).with_cache_bytes(self.cache_bytes);
        options.cache_shares.clone_from(&self.cache_shares);
        (options.check_rows, options.check_keys) = (self.check_rows, self.check_keys);
        options.timeout = self.timeout()?;
        options.counters = self.counters();
        options.touch_epoch = self.touch_epoch;
        Ok(options)
    }

    /// Options of an executor on a GPU.
    ///
    /// # Errors
    /// [`ModuleError`] for options that make no sense.
    pub fn on_gpu(&self) -> Result<GpuOptions, ModuleError> {
        let options = GpuOptions::default().with_hbm_bytes(self.hbm_bytes).with_dram_bytes(self.dram_bytes);
        let options = self.hbm_rows.iter().fold(options, |options, (table, rows)| options.with_hbm_rows(table, *rows));
        let mut options = self.timeout()?.into_iter().fold(options, GpuOptions::with_timeout);
        (options.check_rows, options.check_keys) = (self.check_rows, self.check_keys);
        (options.overlay_bytes, options.adopting) = (self.overlay_bytes, self.adopting);
        options.prefetch_multiprocessors = self.prefetch_multiprocessors;
        options.prefetch_priority = self.prefetch_priority.into();
        options.peer_gpu = self.peer_gpu;
        options.cache_bytes = self.cache_bytes;
        options.cache_shares.clone_from(&self.cache_shares);
        options.cache_batch_rows = self.cache_batch_rows.unwrap_or(options.cache_batch_rows);
        options.cache_admission = self.cache_admission.admission()?;
        options.cached_dram = self.cache_dram;
        options.counters = self.counters();
        options.touch_epoch = self.touch_epoch;
        Ok(options)
    }

    fn counters(&self) -> Option<CounterOptions> {
        let options = (self.counter_bytes != 0).then(|| CounterOptions::new(self.counter_bytes))?;
        Some(self.count_every.into_iter().fold(options, CounterOptions::with_every))
    }
}

impl ModuleSpec {
    /// What a text says.
    pub fn parse(text: &str) -> Result<Self, ModuleError> {
        let spec: Self = serde_json::from_str(text).map_err(|error| ModuleError::Text(error.to_string()))?;
        if spec.features.is_empty() || spec.features.len() != spec.shapes.len() {
            let text = format!("{} features, and shapes of {}", spec.features.len(), spec.shapes.len());
            return Err(ModuleError::Text(text));
        }
        Ok(spec)
    }

    /// The number of the GPU; `None`: on the host.
    pub fn gpu(&self) -> Result<Option<u32>, ModuleError> {
        match self.device.split_once(':') {
            None if self.device == "cpu" => Ok(None),
            Some(("cuda", index)) if index.parse::<u32>().is_ok() => Ok(index.parse().ok()),
            _ => Err(ModuleError::Text(format!("the device {:?}", self.device))),
        }
    }

    /// Whether ids are in bags.
    pub fn pooled(&self) -> bool {
        self.features.first().is_some_and(|feature| feature.pooling != "none")
    }

    /// Whether ids have weights.
    pub fn weighted(&self) -> bool {
        self.features.iter().any(|feature| feature.weighted)
    }

    /// Elements of an output row.
    pub fn width(&self) -> usize {
        let dims = self.shapes.iter().map(|&(_, dim)| dim as usize);
        if self.pooled() { dims.sum() } else { dims.max().unwrap_or(0) }
    }

    /// Type of the output's elements.
    pub fn dtype(&self) -> Result<DType, ModuleError> {
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == self.out);
        found.ok_or_else(|| ModuleError::Text(format!("the type of output {:?}", self.out)))
    }
}

/// How the rows of a bag become one, by the name of it.
pub fn pooling(name: &str) -> Result<Pooling, ModuleError> {
    match name {
        "none" => Ok(Pooling::None),
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        other => Err(ModuleError::invalid("pooling", format!("{other:?} is no pooling: give none, sum or mean"))),
    }
}

/// Which row a missing id gets, by the name of it.
pub fn missing_policy(name: &str) -> Result<MissingPolicy, ModuleError> {
    match name {
        "error" => Ok(MissingPolicy::Error),
        "default" => Ok(MissingPolicy::Default),
        "zero" => Ok(MissingPolicy::Zero),
        "skip" => Ok(MissingPolicy::Skip),
        other => {
            let text = format!("{other:?} is no way with missing ids: give error, default, zero or skip");
            Err(ModuleError::invalid("missing", text))
        }
    }
}

/// What the output has for rows that could not be read, by the name of what becomes of them.
pub fn failed_rows(on_failure: &str) -> Result<FailedRows, ModuleError> {
    match on_failure {
        "raise" | "mask" => Ok(FailedRows::Zeros),
        "nan" => Ok(FailedRows::Nan),
        other => {
            let text = format!("{other:?} is no way with rows that could not be read: give raise, nan or mask");
            Err(ModuleError::invalid("on_failure", text))
        }
    }
}

/// What a mask tells, by the name of it.
pub fn mask_meaning(name: &str) -> Result<MaskMeaning, ModuleError> {
    match name {
        "found" => Ok(MaskMeaning::Found),
        "failed" => Ok(MaskMeaning::Failed),
        other => {
            let text = format!("{other:?} is no meaning of a mask: give found or failed");
            Err(ModuleError::invalid("mask", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_on_host_and_gpu_get_the_shares_of_a_cache() {
        let text = r#"{
            "dram_bytes": 0, "hbm_bytes": 0, "check_rows": false, "check_keys": false, "overlay_bytes": 0, "adopting": false,
            "timeout": null, "cache_bytes": 4096, "cache_shares": [["item", 1024], ["user", 512]]
        }"#;
        let spec: ExecutorSpec = serde_json::from_str(text).unwrap();
        let shares = [("item".to_owned(), 1024), ("user".to_owned(), 512)];
        assert_eq!(spec.on_host().unwrap().cache_shares, shares);
        let gpu = spec.on_gpu().unwrap();
        assert_eq!((gpu.cache_bytes, &gpu.cache_shares[..]), (4096, &shares[..]));
    }
}
