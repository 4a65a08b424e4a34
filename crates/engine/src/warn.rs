//! What whoever runs the server should know and no client is told: lines on stderr.

use std::io::Write;

/// Writes a line. A closed stderr is nobody's to tell.
pub(crate) fn warn(message: &str) {
    drop(writeln!(std::io::stderr(), "rollscope engine: warning: {message}"));
}
