//! `rollscope engine`: the embedded inference server.

use clap::{ArgMatches, Command};
use rollscope_config::{OptionSet as _, Options as _, Published};
use rollscope_engine::{Engine, EngineError, EngineOptions};
use rollscope_trace::sentence;

use super::{bare, block_on, listen_at, ready_line, resolve};
use crate::exit::Failure;
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::output;

/// What the command takes.
pub(crate) type Options = (EngineOptions, LifetimeOptions);

pub(crate) fn command() -> Command {
    LifetimeOptions::args(EngineOptions::command("engine"))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (options, lifetime) = resolve::<Options>(matches)?;
    // The ranks listen there too, and tell their peers.
    let options = EngineOptions { host: bare(&options.host).to_owned(), ..options };
    block_on(async {
        let shutdown = shutdown(&lifetime)?;
        let (listener, address) = listen_at(&options.host, options.port).await?;
        let engine = Engine::start(Published::publish(options)).await.map_err(failure)?;
        if let Some(error) = engine.metrics_trouble() {
            output::note(format_args!("rollscope: no forward-pass metrics: {}", sentence(error)));
        }
        ready_line("engine", "http", address)?;
        engine.serve(listener, shutdown).await.map_err(failure)
    })
}

fn failure(error: EngineError) -> Failure {
    if error.is_configuration() { Failure::usage(error) } else { Failure::Other(error.into()) }
}
