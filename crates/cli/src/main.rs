//! The `rollscope` command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A request costs some fifty allocations, and the system's allocator takes twice as long for them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    rollscope_cli::main(std::env::args_os()).into()
}
