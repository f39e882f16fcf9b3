//! What a look-up on a GPU costs by the elements of its rows, and by whether rows are compared with their checksums.

mod checksums;
mod content;
pub(in crate::gpu) mod decoded;
mod measure;
pub mod report;
mod request;
mod results;
mod setup;

pub use checksums::checksums;
pub use measure::elements;
pub use results::{ChecksumResult, ElementResult};
pub use setup::{ChecksumSetup, ELEMENTS, ElementSetup};
