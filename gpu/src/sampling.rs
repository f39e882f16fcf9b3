//! Ids of look-ups on the GPU that are counted: kernels leave a sample of them in a ring in pinned memory, and a thread of the host
//! counts these.

use std::sync::{Arc, Mutex};

use warprow_gpu_queues::{DeviceMemory, Gpu, PinnedMemory};
use warprow_kernels::{SAMPLED_BYTES, SAMPLED_PLANS, SampledRing, abi};
use warprow_lookup::executors::SampledId;
use warprow_lookup::{CounterOptions, Feature, PopularRow, RowCounters};
use warprow_store::view::lock;

use crate::error::GpuError;

/// By plan and feature: the number of its table among those that are counted.
type CountedTables = Arc<Mutex<Vec<Box<[Option<u16>]>>>>;

/// The counts of an executor, and where its kernels leave what is to be counted.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// For the kernels.
    header: DeviceMemory,
    plans: CountedTables,
    counters: RowCounters,
}

impl Sampling {
    /// Counts for tables of these names.
    pub(crate) fn new(gpu: &Arc<Gpu>, options: CounterOptions, names: Vec<String>) -> Result<Self, GpuError> {
        let ring = PinnedMemory::allocate(gpu, SAMPLED_BYTES)?;
        let header = abi::Sampling { ring: ring.address(), tail: 0, every: options.every.max(1) };
        let header = DeviceMemory::holding(gpu, header.as_bytes())?;
        let plans = CountedTables::default();
        let (known, mut place) = (plans.clone(), SampledRing::default());
        let feed = move |give: &mut dyn FnMut(SampledId)| {
            let known = lock(&known);
            let load = |at: usize| ring.memory().load_u64(at);
            place.take(load, &mut |of, id| {
                let table = known.get(of.plan as usize).and_then(|features| features.get(of.feature as usize));
                if let Some(&Some(table)) = table {
                    give((table, id));
                }
            })
        };
        let counters = RowCounters::fed(options, names, Box::new(feed))?;
        Ok(Self { header, plans, counters })
    }

    /// Where kernels find it, and the number of a new plan of these features. `None`: there are more plans than can be told apart.
    pub(crate) fn place_of(&self, features: &[Feature]) -> Option<(u64, u32)> {
        let mut plans = lock(&self.plans);
        let number = u32::try_from(plans.len()).ok().filter(|&number| number < SAMPLED_PLANS)?;
        plans.push(features.iter().map(|feature| self.counters.number(&feature.table)).collect());
        Some((self.header.address(), number))
    }

    pub(crate) fn popular(&self, table: &str, most: usize) -> Option<Vec<PopularRow>> {
        self.counters.popular(table, most)
    }
}
