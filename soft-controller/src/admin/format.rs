//! Format NVM (NVMe Base 2.0, 5.14; NVMe 1.4, 5.23).

use std::time::Duration;

use warprow_spec::admin::{FormatCdw10, SecureErase};
use warprow_spec::{NSID_ALL, Sqe, Status, StatusCode};

use super::reply::Reply;
use crate::backing::MediaError;
use crate::control::Control;
use crate::core::Core;
use crate::failure::Failure;
use crate::format_job::FormatJob;
use crate::namespace::{FormatStep, lba_bytes};
use crate::nvm::protected;
use crate::progress::StepProgress;

impl Control {
    pub(crate) fn is_formatting(&self, namespace: usize) -> bool {
        self.formats.iter().any(|job| job.namespaces.contains(&namespace))
    }

    /// Percentage of a namespace's format that remains; 0 if none is under way.
    pub(super) fn format_remaining(&self, namespace: usize, now: Duration) -> u8 {
        let Some(job) = self.formats.iter().find(|job| job.namespaces.contains(&namespace)) else { return 0 };
        let whole = (job.due - job.started).as_secs_f64();
        let left = job.due.saturating_sub(now).as_secs_f64();
        if whole > 0.0 { (left / whole * 100.0).ceil().clamp(1.0, 100.0) as u8 } else { 1 }
    }

    pub(super) fn format_nvm(&mut self, core: &Core, sqe: &Sqe) -> Result<Reply, Failure> {
        let how = FormatCdw10::from_bits(sqe.cdw10);
        let fna = core.config.fna;
        let one = sqe.nsid.wrapping_sub(1) as usize;
        let erase = match how.ses() {
            SecureErase::NONE => false,
            SecureErase::USER_DATA => true,
            SecureErase::CRYPTOGRAPHIC if fna.crypto_erase() => true,
            _ => return Err(Failure::field(41)),
        };
        if sqe.nsid == NSID_ALL && fna.no_broadcast() {
            return Err(Failure::field(4));
        }
        if sqe.nsid != NSID_ALL && one >= self.namespaces.len() {
            return Err(Failure::at(StatusCode::InvalidNamespaceOrFormat, 4));
        }
        let all = sqe.nsid == NSID_ALL || fna.reaches_all(erase);
        let namespaces: Vec<usize> = if all { (0..self.namespaces.len()).collect() } else { vec![one] };
        let offered = |&i: &usize| {
            let mut formats = self.namespaces[i].formats();
            formats.nth(how.format_index().into()).is_some_and(|format| format.lba_bytes().is_some())
        };
        if !namespaces.iter().all(offered) || how.pi() != 0 || how.mset() {
            return Err(Failure::at(StatusCode::InvalidFormat, 40));
        }
        if namespaces.iter().any(|&i| self.namespaces[i].write_protected) {
            return Err(protected());
        }
        if namespaces.iter().any(|&i| self.is_formatting(i)) {
            return Err(StatusCode::FormatInProgress.into());
        }
        let started = core.now();
        let due = started + core.config.format_time;
        let format = how.format_index();
        self.formats.push(FormatJob { started, due, format, namespaces, sqe: Some(*sqe) });
        // Workers refuse I/O to it from now on.
        self.publish(core);
        Ok(Reply::Later)
    }

    /// Ends the formats that are due.
    pub(crate) fn finish_formats(&mut self, core: &Core, progress: &mut StepProgress) {
        let now = core.now();
        while let Some(index) = self.formats.iter().position(|job| job.due <= now) {
            let job = self.formats.remove(index);
            let result = job.namespaces.iter().try_for_each(|&i| self.format(i, job.format));
            self.publish(core);
            if let Some(sqe) = job.sqe {
                let status = match result {
                    Ok(()) => Status::SUCCESS,
                    Err(error) => self.record(core, &sqe, error.into()),
                };
                self.complete(core, sqe.cid(), 0, status, progress);
            }
        }
    }

    fn format(&mut self, namespace: usize, format: u8) -> Result<(), MediaError> {
        let Some(namespace) = self.namespaces.get_mut(namespace) else { return Ok(()) };
        let tell = |step, format| match &namespace.on_format {
            Some(hook) => hook(step, lba_bytes(format)).map_err(MediaError::of_write),
            None => Ok(()),
        };
        let erase = || namespace.backing.zero(0, namespace.backing.size(), true);
        if let Err(error) = tell(FormatStep::Begins, format) {
            // Nothing was erased, and all is as before, as far as whoever failed can say so.
            let _ = tell(FormatStep::Ended, namespace.format);
            return Err(error);
        }
        let result = erase().and_then(|()| namespace.backing.flush()).and_then(|()| tell(FormatStep::Ended, format));
        namespace.half_formatted = result.is_err();
        if result.is_ok() {
            namespace.set_format(format);
        }
        result
    }
}
