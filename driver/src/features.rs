use std::time::Duration;

use warprow_spec::Sqe;
use warprow_spec::admin::FeatureSelect;
use warprow_spec::features::{
    AutonomousPowerStateTransition, FeatureId, HostMemoryBuffer, NumberOfQueues, VolatileWriteCacheFeature,
};

use crate::controller::Controller;
use crate::error::DriverError;

impl Controller {
    /// The value of a feature: dword 0 of Get Features (NVMe Base 2.0, 5.15; NVMe 1.4, 5.13). `nsid` is 0 where the
    /// feature belongs to no namespace.
    pub fn feature(&self, fid: FeatureId, nsid: u32, select: FeatureSelect) -> Result<u32, DriverError> {
        let answer = self.send(Sqe::get_features(fid, nsid, select), &[], self.options().admin_timeout)?;
        Ok(answer.result[0])
    }

    /// Sets a feature, not saved, and returns dword 0 of the answer (NVMe Base 2.0, 5.27; NVMe 1.4, 5.21). Data that goes with it
    /// is zeros.
    ///
    /// Host Memory Buffer can be disabled so, but not enabled ([`DriverError::FeatureLendsMemory`]): no other feature has a drive write
    /// to memory after the command has ended.
    pub fn set_feature(&self, fid: FeatureId, nsid: u32, value: u32) -> Result<u32, DriverError> {
        if fid == FeatureId::HOST_MEMORY_BUFFER && HostMemoryBuffer::from_bits(value).ehm() {
            return Err(DriverError::FeatureLendsMemory { function: self.name().clone(), fid });
        }
        let answer = self.send(Sqe::set_features(fid, nsid, value), &[], self.options().admin_timeout)?;
        Ok(answer.result[0])
    }

    /// Whether the volatile write cache is on; `None` where the controller has none, so that every completed write is
    /// already durable.
    pub fn volatile_write_cache(&self) -> Result<Option<bool>, DriverError> {
        if !self.info().vwc.present() {
            return Ok(None);
        }
        let value = self.feature(FeatureId::VOLATILE_WRITE_CACHE, 0, FeatureSelect::CURRENT)?;
        Ok(Some(VolatileWriteCacheFeature::from_bits(value).wce()))
    }

    /// Turns the volatile write cache on or off.
    pub fn set_volatile_write_cache(&self, on: bool) -> Result<(), DriverError> {
        if !self.info().vwc.present() {
            return Err(DriverError::Unsupported { function: self.name().clone(), what: "a volatile write cache" });
        }
        let value = VolatileWriteCacheFeature::new().with_wce(on).into_bits();
        self.set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0, value).map(drop)
    }

    /// Whether the drive changes its power state by itself when it is idle; `None` where it cannot (APSTA).
    pub fn power_transitions(&self) -> Result<Option<bool>, DriverError> {
        if self.info().apsta & 1 == 0 {
            return Ok(None);
        }
        let value = self.feature(FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION, 0, FeatureSelect::CURRENT)?;
        Ok(Some(AutonomousPowerStateTransition::from_bits(value).apste()))
    }

    /// Turns autonomous power state transitions off, unless they are wanted: the first command after one may take as long
    /// as the state's exit latency, up to seconds.
    pub(crate) fn set_power_transitions(&self) -> Result<(), DriverError> {
        if self.options().autonomous_power_states || self.info().apsta & 1 == 0 {
            return Ok(());
        }
        let off = AutonomousPowerStateTransition::new().into_bits();
        match self.set_feature(FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION, 0, off) {
            Ok(_) => Ok(()),
            Err(error @ DriverError::Command { .. }) => {
                tracing::warn!(%error, "the drive keeps its autonomous power state transitions");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for `pairs` I/O queue pairs, before any is created; returns how many may be.
    pub(crate) fn request_queues(&self, pairs: u16, timeout: Duration) -> Result<u16, DriverError> {
        let request = NumberOfQueues::request(pairs.into());
        let sqe = Sqe::set_features(FeatureId::NUMBER_OF_QUEUES, 0, request.into_bits());
        let granted = NumberOfQueues::from_bits(self.send(sqe, &[], timeout)?.result[0]).pairs();
        Ok(granted.min(pairs.max(1).into()) as u16)
    }
}
