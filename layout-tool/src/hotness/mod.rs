//! How often each row of a table is looked up: what ranks are made of.

mod argument;
mod counting;
mod numbers;
mod rows;

pub use argument::{Hot, HotnessFile, Source};
pub use counting::{Hotness, Share, hottest, rank};
pub use numbers::{read_keys, read_numbers};
pub use rows::Rows;
