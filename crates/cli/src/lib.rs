//! The one binary, `rollscope`: puts the parts together.
//!
//! Results go to stdout, everything else to stderr; [`Exit`] lists the exit codes. A command is one file in
//! `commands/`; what several of them need stands beside it.

mod clock;
mod commands;
mod damage;
mod exit;
mod fleet;
mod http;
mod lifetime;
mod opened;
mod output;
mod shown;
mod table;

use std::ffi::OsString;

use clap::{ArgMatches, Command};

pub use exit::Exit;
use exit::Failure;

/// Runs the command line; the first argument is the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> Exit {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return exit::of_parse(&error),
    };
    match dispatch(&matches) {
        Ok(()) => Exit::Done,
        Err(failure) => exit::report(&failure),
    }
}

/// The whole command line.
pub fn command() -> Command {
    Command::new("rollscope")
        .version(env!("CARGO_PKG_VERSION"))
        .about("See where every rollout's time goes.")
        .arg(commands::config_argument())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            commands::demo::command(),
            commands::gateway::command(),
            commands::engine::command(),
            commands::rollout::command(),
            commands::report::command(),
            commands::view::command(),
            commands::import::command(),
            commands::export::command(),
            commands::track::command(),
            commands::fpm::command(),
            commands::config::command(),
        ])
}

fn dispatch(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("demo", matches)) => commands::demo::run(matches),
        Some(("gateway", matches)) => commands::gateway::run(matches),
        Some(("engine", matches)) => commands::engine::run(matches),
        Some(("rollout", matches)) => commands::rollout::run(matches),
        Some(("report", matches)) => commands::report::run(matches),
        Some(("view", matches)) => commands::view::run(matches),
        Some(("import", matches)) => commands::import::run(matches),
        Some(("export", matches)) => commands::export::run(matches),
        Some(("track", matches)) => commands::track::run(matches),
        Some(("fpm", matches)) => commands::fpm::run(matches),
        Some(("config", matches)) => commands::config::run(matches),
        // clap refuses everything else before.
        _ => Ok(()),
    }
}
