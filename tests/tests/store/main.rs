//! The store through the real driver on drives that fail, lose power, or are not the right ones.

mod fixture;
mod loads;
mod members;
