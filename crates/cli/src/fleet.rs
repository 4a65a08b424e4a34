//! Child processes of the demo: started, waited for, watched and stopped together.
//!
//! A child holds the read end of a pipe whose other end is here, and was started with `--exit-on-stdin-close`:
//! closing the pipe asks it to drain and end, and it ends as well when this process dies in whatever way. Each
//! child leads a process group of its own, so that Ctrl-C reaches this process alone and the order of stopping
//! stays ours.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures_util::future::select_all;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;

use crate::exit::Failure;
use crate::output;

/// Children in order of their start.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    name: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
    heard: Arc<Mutex<Heard>>,
    /// Passes its stderr on.
    relay: Option<JoinHandle<()>>,
}

/// What a child said on stderr.
#[derive(Debug, Default)]
struct Heard {
    /// From then on it is passed on as it comes; before, it is the reason why the child does not start.
    ready: bool,
    last_words: VecDeque<String>,
}

/// A child that is not ready by then is given up.
const READY_WITHIN: Duration = Duration::from_mins(1);
/// A child that has not drained by then is killed.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);
/// Lines of a child's stderr that are kept for the message of its death.
const LAST_WORDS_LINES: usize = 20;

// === impl Fleet ===

impl Fleet {
    /// Starts this program again with a server's command line, and waits for its ready line; returns its URL.
    pub(crate) async fn start(&mut self, name: &'static str, args: &[String]) -> Result<String, Failure> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args(args)
            .arg("--exit-on-stdin-close")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Failure::Other(anyhow!("{name} has no output")));
        };
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let relay = Some(tokio::spawn(relay(name, stderr, Arc::clone(&heard))));
        let stdin = child.stdin.take();
        self.members.push(Member { name, child, stdin, heard: Arc::clone(&heard), relay });
        let mut lines = BufReader::new(stdout).lines();
        let Ok(line) = tokio::time::timeout(READY_WITHIN, lines.next_line()).await else {
            return Err(Failure::Other(anyhow!("{name} was not ready within {} s", READY_WITHIN.as_secs())));
        };
        let line = line.with_context(|| format!("cannot read what {name} says"))?;
        match line.as_deref().and_then(|line| line.split_once(" ready on ")) {
            Some((_, url)) => {
                heard.lock().ready = true;
                Ok(url.to_owned())
            }
            None => Err(self.first_exit().await),
        }
    }

    /// Waits until a child ends, which none should; returns what there is to say of it.
    pub(crate) async fn first_exit(&mut self) -> Failure {
        if self.members.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.members.iter_mut().map(|member| Box::pin(member.ended()))).await.0
    }

    /// Asks the children to end, the last one first, and waits for each.
    pub(crate) async fn stop(mut self) {
        while let Some(mut member) = self.members.pop() {
            drop(member.stdin.take());
            if tokio::time::timeout(DRAINED_WITHIN, member.child.wait()).await.is_err() {
                output::note(format_args!("rollscope: {} did not end; killed", member.name));
                // It has ended by itself in the meantime where this fails.
                let _killed = member.child.kill().await;
            }
        }
    }
}

// === impl Member ===

impl Member {
    /// How it ended; wrong usage of it was wrong usage of this program.
    async fn ended(&mut self) -> Failure {
        let waited = self.child.wait().await;
        if let Some(relay) = self.relay.take() {
            // Its stderr ends with it; a panic of the relay costs only words.
            let _relayed = relay.await;
        }
        let status = waited.as_ref().map_or_else(ToString::to_string, ToString::to_string);
        let heard = self.heard.lock();
        let words: Vec<&str> =
            heard.last_words.iter().map(|line| line.trim_start_matches("rollscope: ")).collect();
        let error = match words.as_slice() {
            [] => anyhow!("{} ended ({status})", self.name),
            words => anyhow!("{} ended ({status}): {}", self.name, words.join("; ")),
        };
        match waited {
            Ok(status) if status.code() == Some(2) => Failure::Usage(error),
            _ => Failure::Other(error),
        }
    }
}

/// Passes a child's stderr on, each line with its name, and keeps the last lines.
async fn relay(name: &'static str, stderr: impl AsyncRead + Unpin, heard: Arc<Mutex<Heard>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut heard = heard.lock();
        if heard.ready {
            output::note(format_args!("[{name}] {line}"));
        }
        if heard.last_words.len() == LAST_WORDS_LINES {
            heard.last_words.pop_front();
        }
        heard.last_words.push_back(line);
    }
}
