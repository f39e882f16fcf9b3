//! Asynchronous Event Request (NVMe Base 2.0, 5.2; NVMe 1.4, 5.2).

use warprow_spec::{Sqe, Status, StatusCode};

use super::reply::Reply;
use crate::control::Control;
use crate::core::Core;
use crate::events::REQUEST_LIMIT;
use crate::failure::Failure;
use crate::progress::StepProgress;

impl Control {
    pub(super) fn async_event_request(&mut self, sqe: &Sqe) -> Result<Reply, Failure> {
        if self.events.requests.len() >= REQUEST_LIMIT {
            return Err(StatusCode::AsyncEventLimitExceeded.into());
        }
        self.events.requests.push_back(sqe.cid());
        Ok(Reply::Later)
    }

    /// Completes requests for which there are events.
    pub(crate) fn deliver_events(&mut self, core: &Core, progress: &mut StepProgress) {
        while let Some((cid, event)) = self.events.next() {
            self.complete(core, cid, event.into_bits(), Status::SUCCESS, progress);
        }
    }
}
