//! Checks that the driver and a controller must pass together, over any transport.
#![forbid(unsafe_code)]
