//! `/generate`: requests are handed to the scheduler, and their output goes back whole or as it comes.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;

use super::App;
use super::fields::Fields;
use super::parse::Call;
use super::render::{Reply, Subject};
use super::respond::ApiError;
use crate::output::{Finish, Listener, Progress};
use crate::request::GenerateSpec;
use crate::stamps::Stamps;

/// A request that is being computed. Dropping it ends the request.
pub(super) struct Live {
    subject: Subject,
    listener: Listener,
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let stamps = Stamps::new(app.clock.now());
    app.check_open()?;
    let mut fields = Fields::parse(&body?)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    match Call::read(&app, fields, &stamps) {
        Ok(call) if is_stream => Ok(streamed(events(Arc::clone(&app), start(&app, call, true).await?))),
        Ok(call) => whole(&app, call).await,
        // The client reads events, so it gets one.
        Err(error) if is_stream => Ok(streamed(stream::iter([event(&error.body())]))),
        Err(error) => Err(error),
    }
}

/// Hands the requests of a call to the scheduler.
pub(super) async fn start(app: &App, call: Call, is_stream: bool) -> Result<Vec<Live>, ApiError> {
    let Call { specs, is_batch, with_text, .. } = call;
    let subject = |(index, spec): (usize, &GenerateSpec)| Subject {
        rid: spec.rid.clone(),
        dp_rank: 0,
        prompt_tokens: spec.input_ids.len(),
        logprobs: spec.logprobs,
        with_text,
        index: (is_batch && is_stream).then_some(index),
    };
    let subjects: Vec<_> = specs.iter().enumerate().map(subject).collect();
    let started = app.ranks.generate(specs).await?;
    let live = |(subject, (dp_rank, listener))| Live { subject: Subject { dp_rank, ..subject }, listener };
    Ok(subjects.into_iter().zip(started).map(live).collect())
}

/// The replies when all have ended. An error of one is the answer to all, and ends the others.
async fn whole(app: &App, call: Call) -> Result<Response, ApiError> {
    let is_batch = call.is_batch;
    let live = start(app, call, false).await?;
    let mut replies = try_join_all(live.into_iter().map(|live| live.reply(app))).await?;
    match replies.pop() {
        Some(reply) if !is_batch => Ok(Json(reply).into_response()),
        last => {
            replies.extend(last);
            Ok(Json(replies).into_response())
        }
    }
}

/// An event whenever one of the requests has more, with all that it has so far.
fn events(app: Arc<App>, live: Vec<Live>) -> impl Stream<Item = Bytes> + Send {
    let each = live.into_iter().map(move |live| {
        let app = Arc::clone(&app);
        Box::pin(stream::unfold(Some(live), move |live| {
            let app = Arc::clone(&app);
            async move { live?.next(&app).await }
        }))
    });
    stream::select_all(each)
}

pub(super) fn streamed(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let end = stream::iter([Bytes::from_static(b"data: [DONE]\n\n")]);
    let body = Body::from_stream(events.chain(end).map(Ok::<_, std::convert::Infallible>));
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")], body).into_response()
}

/// A server-sent event. What is sent here has no key that is not text, so it can always be written.
pub(super) fn event(data: &impl Serialize) -> Bytes {
    let mut event = b"data: ".to_vec();
    if serde_json::to_writer(&mut event, data).is_err() {
        event.truncate("data: ".len());
        event.extend_from_slice(b"null");
    }
    event.extend_from_slice(b"\n\n");
    event.into()
}

// === impl Live ===

impl Live {
    pub(super) fn prompt_tokens(&self) -> usize {
        self.subject.prompt_tokens
    }

    /// What there is when there is more.
    pub(super) async fn changed(&mut self) -> Progress {
        self.listener.changed().await;
        self.listener.snapshot()
    }

    /// The prompt's tokens and all that came of it, or the error that it ended with.
    pub(super) async fn end(self, app: &App) -> Result<(usize, Progress), ApiError> {
        self.listener.finished().await;
        let mut progress = self.listener.snapshot();
        progress.stamps.finished = Some(app.clock.now());
        match &progress.finish {
            Some(Finish::Abort(abort)) => match ApiError::of_abort(abort) {
                Some(error) => Err(error),
                None => Ok((self.subject.prompt_tokens, progress)),
            },
            _ => Ok((self.subject.prompt_tokens, progress)),
        }
    }

    /// The reply at its end, or the error that it ended with.
    async fn reply(self, app: &App) -> Result<Reply, ApiError> {
        let subject = self.subject.clone();
        let (_, progress) = self.end(app).await?;
        Ok(Reply::new(app, &subject, progress))
    }

    /// The next event, and the request unless that was its last.
    async fn next(mut self, app: &App) -> Option<(Bytes, Option<Self>)> {
        loop {
            self.listener.changed().await;
            let mut progress = self.listener.snapshot();
            let is_end = progress.finish.is_some();
            if progress.output_ids.is_empty() && !is_end {
                continue;
            }
            progress.stamps.finished = is_end.then(|| app.clock.now());
            let event = event(&Reply::new(app, &self.subject, progress));
            return Some((event, (!is_end).then_some(self)));
        }
    }
}
