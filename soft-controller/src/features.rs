//! The values of features.

use warprow_spec::features::{ArbitrationFeature, AsyncEventConfig, FeatureId, NumberOfQueues};

use crate::config::Config;

/// Recommended Arbitration Burst, and what the feature starts with: 2^5 commands.
pub(crate) const ARBITRATION_BURST: u8 = 5;
/// The burst that "no limit" (111b) means.
const UNLIMITED: u32 = 1024;
/// What the model's temperature always is, kelvins: 40 °C.
pub(crate) const TEMPERATURE: u16 = 313;
/// Warning Composite Temperature Threshold, kelvins.
pub(crate) const WARNING_TEMPERATURE: u16 = 343;

/// Feature values since the last controller reset.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    /// Supported features with default and current value.
    values: Vec<(FeatureId, u32, u32)>,
    pub(crate) granted: NumberOfQueues,
    pub(crate) max_queue_pairs: u16,
    /// An I/O queue was created: their number is settled.
    pub(crate) queues_exist: bool,
    pub(crate) volatile: bool,
}

impl Features {
    pub(crate) fn new(config: &Config, volatile: bool) -> Self {
        let granted = NumberOfQueues::request(u32::from(config.queue_pairs));
        let mut values = vec![
            (FeatureId::ARBITRATION, ArbitrationFeature::new().with_ab(ARBITRATION_BURST).into_bits()),
            (FeatureId::POWER_MANAGEMENT, 0),
            (FeatureId::TEMPERATURE_THRESHOLD, u32::from(WARNING_TEMPERATURE)),
            (FeatureId::ERROR_RECOVERY, 0),
            (FeatureId::NUMBER_OF_QUEUES, granted.into_bits()),
            (FeatureId::INTERRUPT_COALESCING, 0),
            (FeatureId::INTERRUPT_VECTOR_CONFIG, 0),
            (FeatureId::WRITE_ATOMICITY_NORMAL, 0),
            (FeatureId::ASYNC_EVENT_CONFIG, 0),
        ];
        if config.autonomous_power_states {
            values.push((FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION, 1));
        }
        if config.host_memory.0 != 0 {
            values.push((FeatureId::HOST_MEMORY_BUFFER, 0));
        }
        if volatile {
            values.push((FeatureId::VOLATILE_WRITE_CACHE, 1));
        }
        Self {
            values: values.into_iter().map(|(id, value)| (id, value, value)).collect(),
            granted,
            max_queue_pairs: config.queue_pairs,
            queues_exist: false,
            volatile,
        }
    }

    pub(crate) fn reset(&mut self) {
        for (_, default, current) in &mut self.values {
            *current = *default;
        }
        self.granted = NumberOfQueues::request(u32::from(self.max_queue_pairs));
        self.queues_exist = false;
    }

    /// A feature's default and current value, if it is supported.
    pub(crate) fn get(&self, id: FeatureId) -> Option<(u32, u32)> {
        self.values.iter().find(|value| value.0 == id).map(|value| (value.1, value.2))
    }

    pub(crate) fn set_value(&mut self, id: FeatureId, to: u32) {
        for (_, _, current) in self.values.iter_mut().filter(|value| value.0 == id) {
            *current = to;
        }
    }

    /// Largest queue identifier that may be created.
    pub(crate) fn queue_pairs(&self) -> u16 {
        u16::try_from(self.granted.pairs()).unwrap_or(u16::MAX)
    }

    /// Whether completed writes may still be in a volatile cache.
    pub(crate) fn write_cache(&self) -> bool {
        self.get(FeatureId::VOLATILE_WRITE_CACHE).is_some_and(|(_, current)| current & 1 != 0)
    }

    /// Whether the temperature has reached its threshold.
    pub(crate) fn is_hot(&self) -> bool {
        let threshold = self.get(FeatureId::TEMPERATURE_THRESHOLD).map_or(u32::MAX, |(_, current)| current & 0xffff);
        u32::from(TEMPERATURE) >= threshold
    }

    pub(crate) fn event_config(&self) -> AsyncEventConfig {
        AsyncEventConfig::from_bits(self.get(FeatureId::ASYNC_EVENT_CONFIG).map_or(0, |(_, current)| current))
    }

    /// Commands taken from one queue at a time.
    pub(crate) fn burst(&self) -> u32 {
        let bits = self.get(FeatureId::ARBITRATION).map_or(0, |(_, current)| current);
        match ArbitrationFeature::from_bits(bits).ab() {
            7 => UNLIMITED,
            ab => 1 << ab,
        }
    }
}
