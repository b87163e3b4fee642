//! The binary `belljar`.
fn main() {}
