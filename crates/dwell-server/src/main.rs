//! The `dwell` binary.
fn main() {}
