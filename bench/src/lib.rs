//! Microbenchmarks against named rivals.
