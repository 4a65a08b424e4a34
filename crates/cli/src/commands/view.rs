//! `rollscope view`: the timeline of a run in the browser.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use clap::{ArgMatches, Command};
use rollscope_config::{OptionSet as _, Options as _, options};
use rollscope_view::{Served, Shown, Token};

use super::{block_on, listen, ready_line, resolve};
use crate::exit::Failure;
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::opened::run_argument;
use crate::output;
use crate::shown::shown_at;

options! {
    /// Serve the timeline of a run, also while it is being recorded.
    pub(crate) struct ViewOptions, environment "ROLLSCOPE_VIEW" {
        serving {
            /// Address to listen on, HOST:PORT; port 0 picks a free one. On another address than this machine's own
            /// the printed URL carries a token, without which nothing is answered.
            listen: String = "127.0.0.1:0", value_name("ADDR");
            /// Do not open a browser.
            no_open: bool = false;
            /// Another run, or such a file, whose steps this one's can be compared with.
            against: Option<String> = None, value_name("RUN|FILE.pt");
        }
    }
}

/// What the command takes.
pub(crate) type Options = (ViewOptions, LifetimeOptions);

pub(crate) fn command() -> Command {
    LifetimeOptions::args(ViewOptions::command("view").arg(run_argument()))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (options, lifetime) = resolve::<Options>(matches)?;
    let path = matches.get_one::<PathBuf>("run").context("no run was given")?;
    let (shown, _folder) = shown_at(path)?;
    let other = options.against.as_deref().map(|path| shown_at(Path::new(path))).transpose()?;
    let (against, _other_folder) = other.unzip();
    block_on(serve(shown, against, &options, &lifetime))
}

/// Serves a run's timeline, beside another's, until told to end.
pub(super) async fn serve(
    run: Shown,
    against: Option<Shown>,
    options: &ViewOptions,
    lifetime: &LifetimeOptions,
) -> Result<(), Failure> {
    let shutdown = shutdown(lifetime)?;
    let (listener, address) = listen(&*options.listen, &options.listen).await?;
    let token = (!address.ip().is_loopback()).then(|| Token::new(rand::random()));
    if let Some(token) = &token {
        output::line(format_args!("rollscope view ready on http://{address}/?token={}", token.as_str()))?;
    } else {
        ready_line("view", "http", address)?;
    }
    if !options.no_open {
        let query = token.as_ref().map_or_else(String::new, |token| format!("?token={}", token.as_str()));
        open_browser(&format!("http://{address}/{query}"));
    }
    rollscope_view::serve(Served { run, against, token }, listener, shutdown)
        .await
        .map_err(anyhow::Error::from)?;
    Ok(())
}

/// Opens the page where there is a desktop; elsewhere the printed address has to do.
fn open_browser(url: &str) {
    let desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    if desktop || cfg!(target_os = "macos") {
        let quiet = std::process::Command::new(program)
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        // Without such a program the printed address has to do as well.
        drop(quiet);
    }
}
