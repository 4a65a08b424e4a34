//! `rollscope fpm`: watch forward passes, message by message, rank by rank, or as a planner does.

mod plan;
mod tail;
mod top;

use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};
use rollscope_config::Options as _;
use rollscope_fpm::{Endpoint, Heard, Subscription, endpoints_of};
use rollscope_record::told_endpoints;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) use self::plan::PlanOptions;
pub(crate) use self::tail::TailOptions;
pub(crate) use self::top::TopOptions;
use super::{block_on_runtime, resolve};
use crate::exit::Failure;
use crate::http::get_json;
use crate::lifetime::{LifetimeOptions, shutdown};

/// What is watched, and what is heard of it.
struct Watch {
    endpoints: Vec<Endpoint>,
    heard: mpsc::Receiver<Heard<usize>>,
    _subscriptions: Vec<Subscription>,
}

/// Messages that may wait to be shown; beyond, publishers keep and at last drop them.
const QUEUE_MESSAGES: usize = 4096;
/// What a server may take to tell of itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(crate) fn command() -> Command {
    Command::new("fpm")
        .about("Watch the forward passes of workers.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([tail_command(), top_command(), plan_command()])
}

pub(crate) fn tail_command() -> Command {
    TailOptions::command("tail").arg(base_argument())
}

pub(crate) fn top_command() -> Command {
    TopOptions::command("top").arg(base_argument())
}

pub(crate) fn plan_command() -> Command {
    PlanOptions::command("plan").arg(base_argument())
}

fn base_argument() -> Arg {
    Arg::new("base")
        .value_name("BASE")
        .num_args(0..)
        .help("ipc://PATH (its ranks at PATH.0, PATH.1 …) or tcp://HOST:PORT; or the address of one rank")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("tail", matches)) => {
            let options = resolve::<TailOptions>(matches)?;
            watch(matches, &options.server, |watch| tail::run(watch, &options))
        }
        Some(("top", matches)) => {
            let options = resolve::<TopOptions>(matches)?;
            watch(matches, &options.server, |watch| top::run(watch, &options))
        }
        Some(("plan", matches)) => {
            let options = resolve::<PlanOptions>(matches)?;
            watch(matches, &options.server, |watch| plan::run(watch, &options))
        }
        // clap refuses everything else before.
        _ => Ok(()),
    }
}

/// Watches until the work ends or is interrupted.
fn watch<W: Future<Output = Result<(), Failure>>>(
    matches: &ArgMatches,
    servers: &[String],
    work: impl FnOnce(Watch) -> W,
) -> Result<(), Failure> {
    // One thread follows a thousand ranks; two would wake each other for every message.
    block_on_runtime(&mut Builder::new_current_thread(), async {
        let interrupted = shutdown(&LifetimeOptions { exit_on_stdin_close: false })?;
        let bases = matches.get_many::<String>("base").into_iter().flatten();
        let watching = async { work(Watch::start(bases, servers).await?).await };
        tokio::select! {
            ended = watching => ended,
            () = interrupted => Ok(()),
        }
    })
}

/// The endpoints of a server's ranks, asked of the server.
async fn endpoints_at(url: &str) -> Result<Vec<Endpoint>, Failure> {
    let address = format!("{}/server_info", url.trim_end_matches('/'));
    let asked = timeout(ANSWER_WITHIN, get_json(&address)).await;
    let info = asked.with_context(|| format!("no answer in time from {address}"))??;
    let told = told_endpoints(&info, url).with_context(|| format!("{address} tells of no endpoints"))?;
    let found = told.with_context(|| format!("{url} does not tell at present where it publishes"))?;
    if found.is_empty() {
        let hint = "it publishes no forward-pass metrics (--enable-forward-pass-metrics)";
        return Err(Failure::Other(anyhow::anyhow!("{url}: {hint}")));
    }
    Ok(found)
}

// === impl Watch ===

impl Watch {
    async fn start(bases: impl Iterator<Item = &String>, servers: &[String]) -> Result<Self, Failure> {
        let mut endpoints = Vec::new();
        for base in bases {
            endpoints.extend(endpoints_of(base).map_err(|error| Failure::Usage(error.into()))?);
        }
        for url in servers {
            endpoints.extend(endpoints_at(url).await?);
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
