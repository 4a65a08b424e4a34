//! The server: page and API on one listener.

use std::future::{Future, IntoFuture as _};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn;
use rollscope_run::Run;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::given::Given;
use crate::guard::Token;
use crate::source::Source;
use crate::{api, guard, page};

/// Why the viewer stopped.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The listener failed.
    #[error("the viewer's listener failed")]
    Listener(#[from] io::Error),
}

/// A run that is shown.
#[derive(Debug)]
pub struct Shown {
    /// Its folder, which is followed.
    pub run: Run,
    /// Steps that are read from elsewhere, and are not in the folder.
    pub given: Given,
}

/// What is served, and to whom.
#[derive(Debug)]
pub struct Served {
    /// The run.
    pub run: Shown,
    /// One to compare it with.
    pub against: Option<Shown>,
    /// Only those who bring it are answered.
    pub token: Option<Token>,
}

/// What writing the last answers may take. A request that does not come to its end is not waited for either.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Serves a run until `shutdown` completes and the answers under way are written.
pub async fn serve(
    Served { run, against, token }: Served,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ViewError> {
    let bound = listener.local_addr()?;
    let headers = Arc::new(guard::headers());
    let run = source(run);
    let mut app = page::routes(run.clone()).merge(api::routes(run, against.map(source)));
    if let Some(token) = token {
        app = app.layer(from_fn(move |request, next| {
            guard::check_token(token.clone(), bound.port(), request, next)
        }));
    }
    let app = app
        .layer(from_fn(move |request, next| guard::check_host(bound, request, next)))
        .layer(from_fn(move |request, next| guard::set_headers(headers.clone(), request, next)));
    let (told, end) = oneshot::channel();
    let told = async {
        shutdown.await;
        // Nobody listens any more where the listener has failed.
        let _heard = told.send(());
    };
    let overdue = async {
        if end.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        served = axum::serve(listener, app).with_graceful_shutdown(told).into_future() => served?,
        () = overdue => {}
    }
    Ok(())
}

fn source(Shown { run, given }: Shown) -> Arc<Source> {
    Arc::new(Source::new(run, given))
}

// === impl Shown ===

impl From<Run> for Shown {
    fn from(run: Run) -> Self {
        Self { run, given: Given::default() }
    }
}
