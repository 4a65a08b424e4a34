//! When a server ends: at a signal, or with whoever started it.

use std::io::Read as _;

use rollscope_config::options;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

options! {
    /// When a server ends.
    pub(crate) struct LifetimeOptions, environment "ROLLSCOPE" {
        serving {
            /// End when standard input ends, as at SIGTERM. Whoever starts a server holds the other end of the pipe: the
            /// server then never outlives it, however it dies.
            exit_on_stdin_close: bool = false;
        }
    }
}

/// Completes when the server is to drain and end: SIGINT, SIGTERM, or the end of standard input where that was
/// asked for. The signals are caught from the call on, not from the first poll. A further signal does not wait for what is
/// being drained.
pub(crate) fn shutdown(
    options: &LifetimeOptions,
) -> std::io::Result<impl Future<Output = ()> + Send + use<>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stdin = options.exit_on_stdin_close.then(stdin_closed);
    Ok(async move {
        let closed = async {
            match stdin {
                Some(closed) => drop(closed.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = closed => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            end_at_once();
        });
    })
}

#[expect(clippy::disallowed_methods, reason = "whoever asks twice does not want to wait for guards")]
fn end_at_once() {
    crate::output::note(format_args!("rollscope: told to end again, ends at once"));
    std::process::exit(1);
}

/// Reads standard input to its end on a thread of its own: tokio's would keep the runtime from ending.
fn stdin_closed() -> oneshot::Receiver<()> {
    let (closed, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut buffer), Ok(1..)) {}
        // The server may have ended for another reason.
        let _told = closed.send(());
    });
    receiver
}
