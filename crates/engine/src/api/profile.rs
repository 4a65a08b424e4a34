//! `/start_profile` and `/stop_profile`: what the schedulers do when, as a Chrome trace.
//!
//! The trace has a thread a data-parallel rank and a span for each part of a turn; forward passes tell what they computed. It opens
//! in Perfetto and in `chrome://tracing`. A profile goes `recording → writing → (written)`: it ends at `/stop_profile`, or as soon as
//! one rank has made the forward passes that were asked for, since another may have nothing to do.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{join_all, select_all};
use serde::{Serialize, Serializer};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::fields::{Fields, Refused, refused};
use super::respond::ApiError;
use super::{App, to_its_end};
use crate::clock::Anchor;
use crate::ranks::Ranks;
use crate::scheduler::{Postbox, Recording, Span, Work};

/// A profile that is being recorded, or written.
#[derive(Debug)]
pub(crate) struct Profiling {
    path: PathBuf,
    writing: JoinHandle<io::Result<()>>,
}

/// What makes sense for GPUs alone is refused if it would change which steps are recorded; else it is ignored.
const REFUSED: &[Refused] = &[refused("start_step"), refused("profile_by_stage"), refused("profile_stages")];

/// The trace, microseconds since the Unix epoch.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    trace_events: Events<'a>,
    display_time_unit: &'static str,
    other_data: OtherData,
}

#[derive(Serialize)]
struct OtherData {
    spans_missed: u64,
}

/// The events of all ranks. Each is made when it is written: a rank has up to a quarter of a million.
struct Events<'a> {
    anchor: Anchor,
    recordings: &'a [Recording],
}

/// An event in the words of the format.
#[derive(Serialize)]
struct Event {
    ph: &'static str,
    cat: &'static str,
    name: &'static str,
    pid: u32,
    tid: usize,
    ts: f64,
    dur: f64,
    args: Args,
}

/// The name of the process or of a thread.
#[derive(Serialize)]
struct Metadata {
    ph: &'static str,
    name: &'static str,
    pid: u32,
    tid: usize,
    args: Named,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

/// What a forward pass computed.
#[derive(Default, Serialize)]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_kv_tokens: Option<u64>,
}

/// Begins a profile. It ends at `num_steps` forward passes of one rank, or at `/stop_profile`.
pub(super) async fn start_profile(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<&'static str, ApiError> {
    let mut fields = Fields::parse_optional(&body?)?;
    fields.refuse(REFUSED)?;
    let dir: Option<PathBuf> = fields.take("output_dir")?;
    let dir = dir.unwrap_or_else(std::env::temp_dir);
    let steps: Option<u64> = fields.take("num_steps")?;
    if steps == Some(0) {
        return Err(ApiError::bad_request("num_steps must be at least 1, got 0"));
    }
    to_its_end(async move {
        let mut profiling = app.profiling.lock().await;
        if profiling.as_ref().is_some_and(|profiling| !profiling.writing.is_finished()) {
            return Err(ApiError::bad_request("Profiling is in progress: call /stop_profile first."));
        }
        let made = tokio::fs::create_dir_all(&dir).await;
        made.map_err(|error| ApiError::bad_request(format!("output_dir: {}: {error}", dir.display())))?;
        let anchor = app.clock.anchor();
        let path = dir.join(file_name((anchor.unix_s(app.clock.now()) * 1e3) as u64));
        let recordings = app.ranks.each(|rank| rank.start_profile(steps)).await?;
        let writing = tokio::spawn({
            let (app, path) = (Arc::clone(&app), path.clone());
            async move {
                let recordings = all_of(&app.ranks, recordings).await;
                tokio::task::spawn_blocking(move || write(&path, anchor, &recordings)).await?
            }
        });
        *profiling = Some(Profiling { path, writing });
        Ok("Start profiling.\n")
    })
    .await
}

/// Ends the profile, if it has not ended by itself, and tells where it is.
pub(super) async fn stop_profile(State(app): State<Arc<App>>) -> Result<String, ApiError> {
    to_its_end(async move {
        // Until all is written: what still stops the ranks of this profile must not stop the next one.
        let mut profiling = app.profiling.lock().await;
        let Some(Profiling { path, writing }) = profiling.take() else {
            return Err(ApiError::bad_request("Profiling is not in progress: call /start_profile first."));
        };
        app.ranks.each(Postbox::stop_profile).await?;
        let failed =
            |error: io::Error| ApiError::failure(format!("cannot write {}: {error}", path.display()));
        writing.await.map_err(io::Error::from).flatten().map_err(failed)?;
        Ok(format!("Stop profiling. The trace is in {}.\n", path.display()))
    })
    .await
}

/// A name that no other profile has: of this process, or of one that shares the folder.
fn file_name(unix_ms: u64) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("rollscope-{unix_ms}-{}-{number}.trace.json", std::process::id())
}

/// What the ranks have recorded when the first of them has ended, in their order.
async fn all_of(ranks: &Ranks, recordings: Vec<oneshot::Receiver<Recording>>) -> Vec<Recording> {
    // A scheduler that has ended has recorded nothing.
    let numbered = recordings.into_iter().enumerate();
    let numbered =
        numbered.map(|(rank, recording)| recording.map(move |made| (rank, made.unwrap_or_default())));
    let (first, _, others) = select_all(numbered).await;
    // Where this fails the schedulers have ended, and with them what they recorded.
    drop(ranks.each(Postbox::stop_profile).await);
    let mut all = join_all(others).await;
    all.push(first);
    all.sort_unstable_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, recording)| recording).collect()
}

/// Writes a trace under another name first: who sees the file sees all of it.
fn write(path: &Path, anchor: Anchor, recordings: &[Recording]) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = File::create_new(&part)?;
    write_trace(&mut file, anchor, recordings)?;
    std::fs::rename(&part, path)
}

fn write_trace(to: impl Write, anchor: Anchor, recordings: &[Recording]) -> io::Result<()> {
    let trace = Document {
        trace_events: Events { anchor, recordings },
        display_time_unit: "ms",
        other_data: OtherData { spans_missed: recordings.iter().map(|recording| recording.missed).sum() },
    };
    let mut to = BufWriter::new(to);
    serde_json::to_writer(&mut to, &trace)?;
    to.flush()
}

// === impl Events ===

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq as _;
        let pid = std::process::id();
        let mut events = serializer.serialize_seq(None)?;
        events.serialize_element(&Metadata::of("process_name", (pid, 0), "rollscope engine".to_owned()))?;
        for (rank, recording) in self.recordings.iter().enumerate() {
            events.serialize_element(&Metadata::of(
                "thread_name",
                (pid, rank),
                format!("scheduler DP{rank}"),
            ))?;
            for span in &recording.spans {
                events.serialize_element(&Event::of(span, (pid, rank), self.anchor))?;
            }
        }
        events.end()
    }
}

// === impl Event ===

impl Event {
    fn of(span: &Span, (pid, tid): (u32, usize), anchor: Anchor) -> Self {
        let name = match span.work {
            Work::Receive => "receive",
            Work::Advance => "advance",
            Work::Forward(_) => "forward",
            Work::Harvest => "harvest",
        };
        let args = match span.work {
            Work::Forward(load) => Args {
                prompt_tokens: Some(load.prompt_tokens as u64),
                decode_requests: Some(load.requests as u64),
                decode_kv_tokens: Some(load.kv_tokens as u64),
            },
            _ => Args::default(),
        };
        let (ts, dur) = (anchor.unix_s(span.begin) * 1e6, span.end.since(span.begin).as_secs_f64() * 1e6);
        Self { ph: "X", cat: "scheduler", name, pid, tid, ts, dur, args }
    }
}

// === impl Metadata ===

impl Metadata {
    fn of(name: &'static str, (pid, tid): (u32, usize), value: String) -> Self {
        Self { ph: "M", name, pid, tid, args: Named { name: value } }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures_util::poll;
    use rollscope_config::{Options as _, Published};

    use super::*;
    use crate::clock::Clock;
    use crate::options::EngineOptions;
    use crate::server::Engine;

    /// Counts what is written, and how much of it at once.
    #[derive(Default)]
    struct Sink {
        bytes: usize,
        most: usize,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes += bytes.len();
            self.most = self.most.max(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_long_trace_is_written_as_it_is_made() {
        let clock = Clock::new();
        let now = clock.now();
        let span = Span { work: Work::Receive, begin: now, end: now };
        let recording = Recording { spans: vec![span; 20_000], missed: 3 };
        let mut sink = Sink::default();
        write_trace(&mut sink, clock.anchor(), &[recording]).unwrap();
        assert!(sink.bytes > 20_000 * 80 && sink.most < 64 * 1024, "{} {}", sink.bytes, sink.most);
    }

    #[test]
    fn two_profiles_of_one_millisecond_have_two_names() {
        assert_ne!(file_name(5), file_name(5));
    }

    #[tokio::test]
    async fn a_profile_can_be_stopped_though_who_began_it_has_left() {
        let options = EngineOptions::from_args(["--model-path", "bundled"]).unwrap();
        let engine = Engine::start(Published::publish(options)).await.unwrap();
        let app = || State(Arc::clone(&engine.app));
        let dir = tempfile::tempdir().unwrap();
        let body = Bytes::from(serde_json::json!({"output_dir": dir.path()}).to_string());
        let mut begin = Box::pin(start_profile(app(), Ok(body.clone())));
        assert!(poll!(&mut begin).is_pending());
        drop(begin);
        let deadline = Instant::now() + Duration::from_mins(5);
        let told = loop {
            match stop_profile(app()).await {
                Ok(told) => break told,
                Err(_) => assert!(Instant::now() < deadline, "it never began"),
            }
            tokio::task::yield_now().await;
        };
        // And so with who ends it.
        start_profile(app(), Ok(body)).await.unwrap();
        let mut end = Box::pin(stop_profile(app()));
        assert!(poll!(&mut end).is_pending());
        drop(end);
        while engine.app.profiling.lock().await.is_some() {
            assert!(Instant::now() < deadline, "it never ends");
            tokio::task::yield_now().await;
        }
        assert!(told.contains(&dir.path().display().to_string()), "{told}");
    }
}
