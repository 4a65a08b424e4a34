//! `rollscope demo`: the whole thing on this machine, as separate processes on loopback.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use clap::{ArgMatches, Command};
use rollscope_config::{Choice, OptionSet as _, Options as _, options};
use rollscope_rollout::{Event, Rollout, RolloutOptions};
use rollscope_run::Run;

use super::rollout::{Progress, SamplingOptions, sentence};
use super::{block_on, report, resolve, view};
use crate::clock::compact_utc;
use crate::exit::Failure;
use crate::fleet::Fleet;
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::{http, output};

/// How the engines are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One prefill engine, one decode engine.
    Pd,
    /// One engine for both.
    Unified,
}

options! {
    /// Run the whole thing on this machine: engines, gateway, a rollout, the recorded run and its report.
    pub(crate) struct DemoOptions, environment "ROLLSCOPE_DEMO" {
        disagg {
            /// Prefill and decode on engines of their own, or both on one.
            mode: Mode = Mode::Pd;
        }
        model {
            /// Checkpoint in Hugging Face layout, or `bundled`.
            model_path: String = "bundled", value_name("DIR");
        }
        observability {
            /// Folder of the run; a fresh one under `runs` otherwise.
            out: Option<String> = None, value_name("DIR");
            /// Serve the timeline afterwards, until interrupted.
            serve: bool = false;
        }
    }
}

/// What the command takes.
pub(crate) type Options = (DemoOptions, SamplingOptions);

pub(crate) fn command() -> Command {
    SamplingOptions::args(DemoOptions::command("demo"))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (demo, sampling) = resolve::<Options>(matches)?;
    let out = match &demo.out {
        Some(dir) => PathBuf::from(dir),
        None => Path::new("runs").join(format!("demo-{}", compact_utc(SystemTime::now()))),
    };
    if std::fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::Usage(anyhow!("{} is not empty; --out wants a fresh folder", out.display())));
    }
    let rollout = sampling.rollout(String::new(), 1, None)?;
    block_on(async {
        let mut fleet = Fleet::default();
        let rolled_out = roll_out(&demo, rollout, &out, &mut fleet).await;
        fleet.stop().await;
        rolled_out?;
        report::print(&out)?;
        output::line(format_args!("the timeline: {} view {}", program(), out.display()))?;
        if demo.serve {
            let options =
                view::ViewOptions { listen: "127.0.0.1:0".to_owned(), no_open: false, against: None };
            let run = Run::open(&out).map_err(anyhow::Error::from)?;
            return view::serve(run.into(), None, &options, &LifetimeOptions { exit_on_stdin_close: false })
                .await;
        }
        Ok(())
    })
}

/// Starts the servers and has the rollout done; whatever ends it early is the error.
async fn roll_out(
    demo: &DemoOptions,
    rollout: RolloutOptions,
    out: &Path,
    fleet: &mut Fleet,
) -> Result<(), Failure> {
    let interrupted = shutdown(&LifetimeOptions { exit_on_stdin_close: false })?;
    tokio::pin!(interrupted);
    let gateway = tokio::select! {
        url = start(demo, out, fleet) => url?,
        () = &mut interrupted => return Err(interruption(out)),
    };
    output::note(format_args!("gateway on {gateway}, recording to {}", out.display()));
    let rollout = Rollout::new(RolloutOptions { url: gateway, ..rollout }).map_err(Failure::usage)?;
    let mut progress = Progress::new();
    let show = |event: Event<'_>| {
        progress.show(&event);
        if let Event::StepEnded(step) = &event {
            output::note(format_args!("{}", sentence(step)));
        }
    };
    tokio::select! {
        ended = rollout.run(show) => ended.map_err(anyhow::Error::from)?,
        died = fleet.first_exit() => {
            output::note(format_args!("what was recorded is in {}", out.display()));
            return Err(died);
        }
        () = &mut interrupted => return Err(interruption(out)),
    };
    Ok(())
}

fn interruption(out: &Path) -> Failure {
    Failure::Other(anyhow!("interrupted; what was recorded is in {}", out.display()))
}

/// Starts the engines and the gateway; returns the gateway's URL.
async fn start(demo: &DemoOptions, out: &Path, fleet: &mut Fleet) -> Result<String, Failure> {
    let engine = |mode: &str| {
        let mut args: Vec<String> =
            ["engine", "--enable-forward-pass-metrics", "--port", "0"].map(str::to_owned).to_vec();
        args.extend(["--model-path", &demo.model_path, "--disaggregation-mode", mode].map(str::to_owned));
        args
    };
    let mut gateway: Vec<String> = ["gateway", "--port", "0", "--record"].map(str::to_owned).to_vec();
    gateway.push(out.to_str().context("the run's folder has a name that is no UTF-8")?.to_owned());
    match demo.mode {
        Mode::Unified => {
            let url = fleet.start("engine", &engine("null")).await?;
            gateway.extend(["--worker-urls".to_owned(), url]);
        }
        Mode::Pd => {
            let mut args = engine("prefill");
            args.extend(["--disaggregation-bootstrap-port", "0"].map(str::to_owned));
            let prefill = fleet.start("prefill", &args).await?;
            let decode = fleet.start("decode", &engine("decode")).await?;
            let port = bootstrap_port(&prefill).await?;
            gateway.extend(["--pd-disaggregation".to_owned(), "--prefill".to_owned(), prefill, port]);
            gateway.extend(["--decode".to_owned(), decode]);
        }
    }
    fleet.start("gateway", &gateway).await
}

/// The port that a prefill engine picked for its bootstrap server, asked of the server itself.
async fn bootstrap_port(prefill: &str) -> anyhow::Result<String> {
    let info = http::get_json(&format!("{prefill}/server_info")).await?;
    let port = &info["internal_states"][0]["disaggregation_bootstrap_port"];
    port.as_u64().map(|port| port.to_string()).context("the prefill engine does not tell its bootstrap port")
}

impl Choice for Mode {
    const SPELLINGS: &'static [(&'static str, Self)] = &[("pd", Self::Pd), ("unified", Self::Unified)];
}

/// How this program is called: by its name where that finds it, else by where it lies, as after `cargo run`.
fn program() -> String {
    const NAME: &str = "rollscope";
    let Ok(own) = std::env::current_exe().and_then(|own| own.canonicalize()) else {
        return NAME.to_owned();
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join(NAME)).find(|program| program.is_file());
    let is_own = found.and_then(|program| program.canonicalize().ok()).is_some_and(|program| program == own);
    if is_own { NAME.to_owned() } else { own.display().to_string() }
}
