//! `rollscope gateway`.
use crate::exit::Failure;
use clap::{ArgMatches, Command};
pub(crate) fn command() -> Command {
    Command::new("gateway")
}
pub(crate) fn run(_: &ArgMatches) -> Result<(), Failure> {
    Ok(())
}
