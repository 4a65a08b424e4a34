//! `rollscope fpm`: watch forward passes, message by message, rank by rank, or as a planner does.

mod plan;
mod tail;
mod top;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};
use rollscope_config::Options as _;
use rollscope_fpm::{Address, Heard, Origin, Subscriptions};
use rollscope_record::{PassSource, PassTroubles, QUEUE_MESSAGES, follow_fleet, told_endpoints};
use rollscope_trace::WorkerRef;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) use self::plan::PlanOptions;
pub(crate) use self::tail::TailOptions;
pub(crate) use self::top::TopOptions;
use super::{block_on_runtime, resolve};
use crate::exit::Failure;
use crate::http::{get_json, server_url};
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::output;

/// What is heard of everything that is watched.
type Watched = mpsc::Receiver<Heard<Origin<PassSource>>>;

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
    watching(TailOptions::command("tail"))
}

pub(crate) fn top_command() -> Command {
    watching(TopOptions::command("top"))
}

pub(crate) fn plan_command() -> Command {
    watching(PlanOptions::command("plan"))
}

/// With what is watched: each server has a flag of its own, so that bases may follow.
fn watching(command: Command) -> Command {
    let base = Arg::new("base")
        .value_name("BASE")
        .num_args(0..)
        .help("ipc://PATH (its ranks at PATH.0, PATH.1 …) or tcp://HOST:PORT; or the address of one rank");
    command.mut_arg("server", |server| server.num_args(1)).arg(base)
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
    work: impl FnOnce(Watched) -> W,
) -> Result<(), Failure> {
    let bases = matches.get_many::<String>("base").into_iter().flatten();
    let bases = bases.map(|base| base.parse::<Address>()).collect::<Result<Vec<_>, _>>();
    let bases = bases.map_err(Failure::usage)?;
    let servers = servers.iter().map(|url| server_url(url)).collect::<Result<Vec<_>, _>>()?;
    if bases.is_empty() && servers.is_empty() {
        return Err(Failure::Usage(anyhow::anyhow!("nothing to watch: give a BASE or --server URL")));
    }
    // One thread follows a thousand ranks; two would wake each other for every message.
    block_on_runtime(&mut Builder::new_current_thread(), async {
        let interrupted = shutdown(&LifetimeOptions { exit_on_stdin_close: false })?;
        let watching = async {
            for url in &servers {
                publishes(url).await?;
            }
            let (subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
            let workers: Vec<_> = servers.iter().map(|url| worker(url)).collect();
            let troubles = PassTroubles::new(|text| output::note(format_args!("{text}")));
            let ask = |worker: WorkerRef| async move { server_info(&worker.url).await.ok() };
            tokio::select! {
                ended = work(heard) => ended,
                () = follow_fleet(subscriptions, || workers.clone(), bases, ask, troubles) => Ok(()),
            }
        };
        tokio::select! {
            ended = watching => ended,
            () = interrupted => Ok(()),
        }
    })
}

/// A server that is asked by its URL, of which nothing else is known.
fn worker(url: &str) -> WorkerRef {
    WorkerRef { url: url.into(), instance: url.into() }
}

async fn server_info(url: &str) -> anyhow::Result<Value> {
    let address = format!("{url}/server_info");
    let asked = timeout(ANSWER_WITHIN, get_json(&address)).await;
    asked.with_context(|| format!("no answer in time from {address}"))?
}

/// Makes sure that a server tells where it publishes, so that nobody waits in vain; later it may come and go.
async fn publishes(url: &str) -> Result<(), Failure> {
    let told =
        told_endpoints(&server_info(url).await?, url, &BTreeMap::new()).with_context(|| url.to_owned())?;
    let found = told.with_context(|| format!("{url} does not tell at present where it publishes"))?;
    if found.is_empty() {
        let hint = "it publishes no forward-pass metrics (--enable-forward-pass-metrics)";
        return Err(Failure::Other(anyhow::anyhow!("{url}: {hint}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_may_follow_a_server() {
        let args = ["top", "--server", "http://a", "--server", "http://b", "ipc:///c", "ipc:///d"];
        for command in [tail_command(), top_command(), plan_command()] {
            let matches = command.try_get_matches_from(args).unwrap();
            let of = |name: &str| matches.get_many::<String>(name).unwrap().cloned().collect::<Vec<_>>();
            assert_eq!((of("server"), of("base")), (args_of(&args[2..=4]), args_of(&args[5..])));
        }
    }

    fn args_of(args: &[&str]) -> Vec<String> {
        args.iter().filter(|arg| !arg.starts_with("--")).map(|&arg| arg.to_owned()).collect()
    }
}
