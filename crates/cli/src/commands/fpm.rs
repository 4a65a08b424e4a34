//! `rollscope fpm`: watch forward passes, message by message or rank by rank.

mod tail;
mod top;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rollscope_fpm::{Endpoint, Heard, Subscription};
use tokio::sync::mpsc;

use super::block_on;
use crate::exit::Failure;
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::passes::{endpoints_at, endpoints_of};

/// What is watched, and what is heard of it.
struct Watch {
    endpoints: Vec<Endpoint>,
    heard: mpsc::Receiver<Heard<usize>>,
    _subscriptions: Vec<Subscription>,
}

/// Messages that may wait to be shown; beyond, publishers keep and at last drop them.
const QUEUE_MESSAGES: usize = 4096;

pub(crate) fn command() -> Command {
    let sources = [
        Arg::new("base").value_name("BASE").num_args(0..).help(
            "ipc://PATH (its ranks at PATH.0, PATH.1 …) or tcp://HOST:PORT; or the address of one rank",
        ),
        Arg::new("server")
            .long("server")
            .value_name("URL")
            .num_args(1..)
            .action(ArgAction::Append)
            .help("Servers that are asked where they publish"),
    ];
    let count = Arg::new("count")
        .long("count")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("End after so many messages");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print each message as JSON");
    let interval = Arg::new("interval")
        .long("interval")
        .value_name("SECONDS")
        .default_value("1")
        .value_parser(value_parser!(u16).range(1..=3600))
        .help("Time between two looks");
    Command::new("fpm")
        .about("Watch the forward passes of workers.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            Command::new("tail")
                .about("Print each message as it comes.")
                .args(sources.clone())
                .args([count, json]),
            Command::new("top").about("Show all ranks at work.").args(sources).arg(interval),
        ])
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some((what, matches)) = matches.subcommand() else { return Ok(()) };
    block_on(async {
        let interrupted = shutdown(&LifetimeOptions { exit_on_stdin_close: false })?;
        let watch = Watch::start(matches).await?;
        let watching = async {
            match what {
                "top" => top::run(watch, matches).await,
                _ => tail::run(watch, matches).await,
            }
        };
        tokio::select! {
            ended = watching => ended,
            () = interrupted => Ok(()),
        }
    })
}

// === impl Watch ===

impl Watch {
    async fn start(matches: &ArgMatches) -> Result<Self, Failure> {
        let given = |name| matches.get_many::<String>(name).into_iter().flatten();
        let mut endpoints = Vec::new();
        for base in given("base") {
            endpoints.extend(endpoints_of(base).map_err(Failure::Usage)?);
        }
        for url in given("server") {
            let found = endpoints_at(url).await?;
            if found.is_empty() {
                let hint = "it publishes no forward-pass metrics (--enable-forward-pass-metrics)";
                return Err(Failure::Other(anyhow::anyhow!("{url}: {hint}")));
            }
            endpoints.extend(found);
        }
        endpoints.sort();
        endpoints.dedup();
        if endpoints.is_empty() {
            return Err(Failure::Usage(anyhow::anyhow!("nothing to watch: give a BASE or --server URL")));
        }
        let (tell, heard) = mpsc::channel(QUEUE_MESSAGES);
        let start = |(index, endpoint): (usize, &Endpoint)| {
            Subscription::start(endpoint.clone(), index, tell.clone())
        };
        let subscriptions = endpoints.iter().enumerate().map(start).collect();
        Ok(Self { endpoints, heard, _subscriptions: subscriptions })
    }
}
