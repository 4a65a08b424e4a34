//! The `rollscope` command.
fn main() {}
