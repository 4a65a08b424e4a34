//! The subcommands, one file each: its options, its [`clap::Command`] and what it does.

pub(crate) mod demo;
pub(crate) mod engine;
pub(crate) mod gateway;
pub(crate) mod report;
pub(crate) mod rollout;
pub(crate) mod view;

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::{TcpListener, ToSocketAddrs};

use crate::exit::Failure;

/// Lets this process, and what it starts, open as many connections as the system allows: three each for a request
/// in flight of a prefill/decode pair, where the usual limit is 1,024.
fn raise_open_files() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        crate::output::note(format_args!("rollscope: cannot raise the limit of open files: {error}"));
    }
}

/// Runs a command's asynchronous part.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(work);
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

/// Listens on a port of a host, which may be a bare IPv6 address.
async fn listen_at(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), Failure> {
    listen((host, port), &format!("{host}:{port}")).await
}

/// The line that every server prints when it is ready to serve.
fn ready_line(what: &str, address: SocketAddr) -> std::io::Result<()> {
    crate::output::line(format_args!("rollscope {what} ready on http://{address}"))
}
