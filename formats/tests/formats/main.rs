//! Every format: what is right is read, what is wrong is refused by name.

mod build;
mod fbgemm;
mod hostile;
mod links;
#[cfg(feature = "parquet")]
mod pages;
mod public;
mod read;
#[cfg(feature = "parquet")]
mod vectors;
