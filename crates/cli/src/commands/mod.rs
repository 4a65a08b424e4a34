//! The subcommands, one file each: its options, its [`clap::Command`] and what it does.

pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod engine;
pub(crate) mod export;
pub(crate) mod fpm;
pub(crate) mod gateway;
pub(crate) mod import;
pub(crate) mod report;
pub(crate) mod rollout;
pub(crate) mod track;
pub(crate) mod view;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, value_parser};
use rollscope_config::{ConfigFile, OptionSet, Sources};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Failure;

/// The process's environment, for options that may come from there.
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// `--config FILE`, which every command takes.
pub(crate) fn config_argument() -> Arg {
    Arg::new("config")
        .long("config")
        .global(true)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Options from a TOML file with a table for each command; a flag or the environment beats it [env: ROLLSCOPE_CONFIG]")
}

/// Where values come from besides the command line.
fn sources(matches: &ArgMatches) -> Result<Sources<'static>, Failure> {
    let variable = || environment("ROLLSCOPE_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = matches.get_one("config").cloned().or_else(variable);
    let file = path.map(|path| ConfigFile::read(&path)).transpose()?;
    if let Some(file) = &file {
        file.refuse_unknown_sections(&config::sections())?;
    }
    Ok(Sources { env: &environment, file })
}

/// The options of a command, from its command line, the environment and the configuration file.
fn resolve<T: OptionSet>(matches: &ArgMatches) -> Result<T, Failure> {
    Ok(T::resolve(matches, &sources(matches)?)?)
}

/// Lets this process, and what it starts, open as many connections as the system allows: three each for a request
/// in flight of a prefill/decode pair, where the usual limit is 1,024.
fn raise_open_files() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        crate::output::note(format_args!("rollscope: cannot raise the limit of open files: {error}"));
    }
}

/// The same number on Linux and macOS.
const SIGXFSZ: i32 = 25;

/// Runs a command's asynchronous part.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    block_on_runtime(&mut Builder::new_multi_thread(), work)
}

fn block_on_runtime<T>(
    runtime: &mut Builder,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    raise_open_files();
    let runtime = runtime.enable_all().build().context("cannot start the asynchronous runtime")?;
    // With a handler, a file that has grown to its limit is an error of one write and not the end of the program.
    let file_size_limit = {
        let _entered = runtime.enter();
        signal(SignalKind::from_raw(SIGXFSZ)).context("cannot catch a signal")?
    };
    let result = runtime.block_on(work);
    drop(file_size_limit);
    // What still runs by now was told to end and has nothing left to say.
    runtime.shutdown_background();
    result
}

/// Listens on an address; the error names it.
async fn listen(address: impl ToSocketAddrs, shown: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        // What is no address at all was never going to be listened on.
        let is_no_address = error.kind() == std::io::ErrorKind::InvalidInput;
        let error = anyhow::Error::from(error).context(format!("cannot listen on {shown}"));
        if is_no_address { Failure::Usage(error) } else { Failure::Other(error) }
    })?;
    let address = listener.local_addr().context("the listener has no address")?;
    Ok((listener, address))
}

/// Listens on a port of a host, which may be an IPv6 address, bare or in brackets.
async fn listen_at(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Failure> {
    listen((bare(host), port), &format!("{host}:{port}")).await
}

/// A host without the brackets in which URLs have IPv6 addresses.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The line that every server prints when it is ready to serve.
fn ready_line(what: &str, scheme: &str, address: SocketAddr) -> std::io::Result<()> {
    crate::output::line(format_args!("rollscope {what} ready on {scheme}://{address}"))
}
