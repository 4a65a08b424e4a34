//! The `rollscope` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    rollscope_cli::main(std::env::args_os()).into()
}
