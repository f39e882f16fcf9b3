//! The command `warprow`.
fn main() {}
