//! What whoever runs the server should know and no client is told: lines on stderr.

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// Where the scheduler's thread leaves such lines: it does not wait for a terminal.
#[derive(Clone, Debug)]
pub(crate) struct Warnings {
    lines: mpsc::Sender<String>,
}

/// Lines that may wait; others are left out, as who does not read these does not miss them.
const LINES: usize = 64;

// === impl Warnings ===

impl Warnings {
    /// Starts writing. Must be called on a runtime.
    pub(crate) fn start() -> Self {
        let (lines, mut told) = mpsc::channel::<String>(LINES);
        tokio::spawn(async move {
            let mut stderr = tokio::io::stderr();
            while let Some(line) = told.recv().await {
                let line = format!("rollscope engine: warning: {line}\n");
                if stderr.write_all(line.as_bytes()).await.is_err() {
                    // A closed stderr is nobody's to tell.
                    return;
                }
            }
        });
        Self { lines }
    }

    pub(crate) fn tell(&self, line: String) {
        drop(self.lines.try_send(line));
    }
}
