//! Features (NVMe Base 2.0, 5.15 and 5.27; NVMe 1.4, 5.13 and 5.21). None can be saved.

use warprow_spec::admin::{FeatureSelect, GetFeaturesCdw10, SetFeaturesCdw10};
use warprow_spec::async_event::{AsyncEventKind, HealthEvent};
use warprow_spec::features::{
    ArbitrationFeature, AsyncEventConfig, FeatureId, NumberOfQueues, TemperatureThreshold, VolatileWriteCacheFeature,
};
use warprow_spec::log::LogPageId;
use warprow_spec::{NSID_ALL, Sqe, StatusCode};

use super::Reply;
use crate::config::Config;
use crate::control::Control;
use crate::core::Core;
use crate::failure::Failure;
use crate::prp;

/// Recommended Arbitration Burst, and what the feature starts with: 2^5 commands.
pub(crate) const ARBITRATION_BURST: u8 = 5;
/// The burst that "no limit" (111b) means.
const UNLIMITED: u32 = 1024;
/// What the model's temperature always is, kelvins: 40 °C.
pub(crate) const TEMPERATURE: u16 = 313;
/// Warning Composite Temperature Threshold, kelvins.
pub(crate) const WARNING_TEMPERATURE: u16 = 343;

/// Bytes of the table of autonomous power state transitions.
const TRANSITION_BYTES: usize = 256;

/// Feature values since the last controller reset.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    /// Supported features with default and current value.
    values: Vec<(FeatureId, u32, u32)>,
    granted: NumberOfQueues,
    max_queue_pairs: u16,
    /// An I/O queue was created: their number is settled.
    pub(crate) queues_exist: bool,
    volatile: bool,
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

    fn get(&self, id: FeatureId) -> Option<(u32, u32)> {
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

    fn event_config(&self) -> AsyncEventConfig {
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

/// Features that belong to a namespace.
fn is_of_namespace(id: FeatureId) -> bool {
    id == FeatureId::ERROR_RECOVERY
}

impl Control {
    /// The namespace a feature command may name: one of its own where the feature is a namespace's, else all or none.
    fn check_feature_namespace(&self, id: FeatureId, nsid: u32) -> Result<(), Failure> {
        let one = self.namespaces.get(nsid.wrapping_sub(1) as usize).is_some();
        match nsid {
            0 if is_of_namespace(id) => Err(Failure::at(StatusCode::InvalidNamespaceOrFormat, 4)),
            0 | NSID_ALL => Ok(()),
            _ if !one => Err(Failure::at(StatusCode::InvalidNamespaceOrFormat, 4)),
            _ if !is_of_namespace(id) => Err(Failure::at(StatusCode::FeatureNotNamespaceSpecific, 4)),
            _ => Ok(()),
        }
    }

    pub(super) fn get_features(&mut self, sqe: &Sqe) -> Result<Reply, Failure> {
        let what = GetFeaturesCdw10::from_bits(sqe.cdw10);
        let (default, current) = self.features.get(what.fid()).ok_or(Failure::field(40))?;
        self.check_feature_namespace(what.fid(), sqe.nsid)?;
        let value = match what.sel() {
            FeatureSelect::CURRENT => match what.fid() {
                FeatureId::INTERRUPT_VECTOR_CONFIG => sqe.cdw11 & 0xffff,
                _ => current,
            },
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => default,
            // Changeable; a namespace's own; not saveable.
            FeatureSelect::SUPPORTED_CAPABILITIES => 1 << 2 | u32::from(is_of_namespace(what.fid())) << 1,
            _ => return Err(Failure::field(41)),
        };
        Ok(Reply::Done(value))
    }

    pub(super) fn set_features(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let what = SetFeaturesCdw10::from_bits(sqe.cdw10);
        let (id, value) = (what.fid(), sqe.cdw11);
        if self.features.get(id).is_none() {
            return Err(Failure::field(40));
        }
        if what.sv() {
            return Err(Failure::at(StatusCode::FeatureNotSaveable, 43));
        }
        self.check_feature_namespace(id, sqe.nsid)?;
        match id {
            FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION => {
                // A table comes with it, of use to a drive that has power states.
                let page = self.regs.cc.page_bytes();
                prp::walk(&mut self.dma, page, (sqe.prp1, sqe.prp2), TRANSITION_BYTES, &mut self.segments)?;
                self.features.set_value(id, value & 1);
            }
            FeatureId::HOST_MEMORY_BUFFER => return self.set_host_memory(core, sqe),
            FeatureId::NUMBER_OF_QUEUES => return self.set_number_of_queues(value),
            FeatureId::VOLATILE_WRITE_CACHE => {
                let enable = VolatileWriteCacheFeature::from_bits(value).wce();
                if !enable {
                    self.namespaces.iter().try_for_each(|namespace| namespace.backing.flush())?;
                }
                self.features.set_value(id, u32::from(enable));
                self.publish(core);
            }
            FeatureId::ARBITRATION => {
                self.features.set_value(id, value);
                self.publish(core);
            }
            // One power state.
            FeatureId::POWER_MANAGEMENT if value & 0x1f != 0 => return Err(Failure::field(44)),
            FeatureId::TEMPERATURE_THRESHOLD => {
                // Only the composite temperature's upper threshold is kept.
                let threshold = TemperatureThreshold::from_bits(value);
                if threshold.tmpsel() == 0 && threshold.thsel().0 == 0 {
                    self.features.set_value(id, value);
                    if self.features.is_hot() && self.features.event_config().critical_warnings().temperature() {
                        self.events.raise(AsyncEventKind::Health(HealthEvent::TEMPERATURE), LogPageId::SMART);
                    }
                }
            }
            // Deallocated blocks read as zeros; there is no error for them.
            FeatureId::ERROR_RECOVERY if value & 1 << 16 != 0 => return Err(Failure::field(46)),
            FeatureId::INTERRUPT_VECTOR_CONFIG if value & 0xffff > u32::from(core.config.queue_pairs) => {
                return Err(Failure::field(44));
            }
            _ => self.features.set_value(id, value),
        }
        Ok(Reply::Done(0))
    }

    fn set_number_of_queues(&mut self, value: u32) -> Result<Reply, Failure> {
        let asked = NumberOfQueues::from_bits(value);
        if asked.nsq_z() == u16::MAX || asked.ncq_z() == u16::MAX {
            return Err(Failure::field(44));
        }
        if self.features.queues_exist {
            return Err(StatusCode::CommandSequenceError.into());
        }
        let most = self.features.max_queue_pairs - 1;
        let granted = NumberOfQueues::new().with_nsq_z(asked.nsq_z().min(most)).with_ncq_z(asked.ncq_z().min(most));
        self.features.granted = granted;
        self.features.set_value(FeatureId::NUMBER_OF_QUEUES, granted.into_bits());
        Ok(Reply::Done(granted.into_bits()))
    }

    /// Whether some namespace's writes go through a volatile cache.
    pub(super) fn has_write_cache(&self) -> bool {
        self.features.volatile
    }
}
