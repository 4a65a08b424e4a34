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

use anyhow::{Context as _, anyhow, bail};
use futures_util::future::select_all;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;

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
    /// What it said last on stderr.
    last_words: Arc<Mutex<VecDeque<String>>>,
    /// Passes its stderr on.
    relay: Option<JoinHandle<()>>,
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
    pub(crate) async fn start(&mut self, name: &'static str, args: &[String]) -> anyhow::Result<String> {
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
            bail!("{name} has no output")
        };
        let last_words = Arc::default();
        let relay = Some(tokio::spawn(relay(name, stderr, Arc::clone(&last_words))));
        let stdin = child.stdin.take();
        self.members.push(Member { name, child, stdin, last_words, relay });
        let mut lines = BufReader::new(stdout).lines();
        let Ok(line) = tokio::time::timeout(READY_WITHIN, lines.next_line()).await else {
            bail!("{name} was not ready within {} s", READY_WITHIN.as_secs())
        };
        let line = line.with_context(|| format!("cannot read what {name} says"))?;
        match line.as_deref().and_then(|line| line.split_once(" ready on ")) {
            Some((_, url)) => Ok(url.to_owned()),
            None => Err(self.first_exit().await),
        }
    }

    /// Waits until a child ends, which none should; returns what there is to say of it.
    pub(crate) async fn first_exit(&mut self) -> anyhow::Error {
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
    async fn ended(&mut self) -> anyhow::Error {
        let status = match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        if let Some(relay) = self.relay.take() {
            // Its stderr ends with it; a panic of the relay costs only words.
            let _relayed = relay.await;
        }
        let words = self.last_words.lock().iter().map(String::as_str).collect::<Vec<_>>().join("; ");
        if words.is_empty() {
            anyhow!("{} ended ({status})", self.name)
        } else {
            anyhow!("{} ended ({status}): {words}", self.name)
        }
    }
}

/// Passes a child's stderr on, each line with its name, and keeps the last lines.
async fn relay(name: &'static str, stderr: impl AsyncRead + Unpin, last_words: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        output::note(format_args!("[{name}] {line}"));
        let mut kept = last_words.lock();
        if kept.len() == LAST_WORDS_LINES {
            kept.pop_front();
        }
        kept.push_back(line);
    }
}
