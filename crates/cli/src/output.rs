//! Stdout for results, stderr for everything else. No control character of a text and no password in a URL gets there.

use std::fmt;
use std::io::{self, Write as _};

use rollscope_config::without_user_info;

/// Prints a line of the result.
pub(crate) fn line(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(shown(&text.to_string()).as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// Prints a line for the person at the terminal.
pub(crate) fn note(text: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    // Nobody is left to be told when stderr is gone.
    let text = shown(&text.to_string());
    let _written = stderr.write_all(text.as_bytes()).and_then(|()| stderr.write_all(b"\n"));
}

/// The text as it may be shown.
pub(crate) fn shown(text: &str) -> String {
    inert(&without_user_info(text))
}

/// The text with control characters escaped: a sample's name, or what a worker said, must not steer the terminal
/// nor begin a line of its own.
pub(crate) fn inert(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_does_not_steer_the_terminal() {
        assert_eq!(super::inert("µ \u{1b}[31mX\nstep 9"), "µ \\u{1b}[31mX\\nstep 9");
        assert_eq!(super::shown("http://u:pw@h\t"), "http://<redacted>@h\\t");
    }
}
