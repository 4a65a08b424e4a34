//! Stdout for results, stderr for everything else.

use std::fmt;
use std::io::{self, Write as _};

/// Prints a line of the result.
pub(crate) fn line(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_fmt(text)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// Prints a line for the person at the terminal.
pub(crate) fn note(text: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    // Nobody is left to be told when stderr is gone.
    let _written = stderr.write_fmt(text).and_then(|()| stderr.write_all(b"\n"));
}
