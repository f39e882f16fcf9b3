//! Get Features and Set Features (NVMe Base 2.0, 5.15 and 5.27; NVMe 1.4, 5.13 and 5.21). None can be saved.

use warprow_spec::admin::{FeatureSelect, GetFeaturesCdw10, SetFeaturesCdw10};
use warprow_spec::async_event::{AsyncEventKind, HealthEvent};
use warprow_spec::features::{FeatureId, NumberOfQueues, TemperatureThreshold, VolatileWriteCacheFeature};
use warprow_spec::log::LogPageId;
use warprow_spec::{NSID_ALL, Sqe, StatusCode};

use super::reply::Reply;
use crate::control::Control;
use crate::core::Core;
use crate::failure::Failure;
use crate::prp;

/// Bytes of the table of autonomous power state transitions.
const TRANSITION_BYTES: usize = 256;

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
        let id = what.fid();
        let value = sqe.cdw11;
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
