//! The driver against a scripted device, under a clock that passes only when somebody waits.

mod admin;
mod bring_up;
mod device;
mod external;
mod host_memory;
mod io;
mod outdated;
mod reset;

use std::sync::Arc;

use device::Device;
use warprow_driver::{Controller, ControllerOptions, DriverError};

fn open(device: &Device) -> Result<Arc<Controller>, DriverError> {
    Controller::open(device.function(), device.clock(), ControllerOptions::default())
}

/// Asserts that an error is of a variant, and prints as a message that holds all of these words.
#[macro_export]
macro_rules! assert_error {
    ($result:expr, $pattern:pat $(if $guard:expr)?, $($word:expr),+ $(,)?) => {{
        let error = $result.expect_err("it should fail");
        assert!(matches!(error, $pattern $(if $guard)?), "{error:?}");
        let text = error.to_string();
        $(assert!(text.contains($word), "{:?} is not in: {text}", $word);)+
    }};
}
