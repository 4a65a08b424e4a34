//! How the program ends: exit codes, and the one place that prints an error.

use std::process::ExitCode;

use rollscope_config::{ConfigError, refused, without_user_info};
use rollscope_trace::sentence;

use crate::output;

/// Exit codes; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: anything but usage or configuration went wrong.
    Failed,
    /// 2: the command line, an option or the environment is wrong.
    Usage,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for cannot be: exit code 2.
    Usage(anyhow::Error),
    /// It went wrong: exit code 1.
    Other(anyhow::Error),
}

/// Tells an error on stderr and gives its exit code.
pub(crate) fn report(failure: &Failure) -> Exit {
    let (Failure::Usage(error) | Failure::Other(error)) = failure;
    // A reader of stdout that has seen enough (`rollscope report RUN | head`) is no failure.
    if is_broken_pipe(error) {
        return Exit::Done;
    }
    let mut text = sentence(error.as_ref());
    if let Failure::Usage(_) = failure {
        text = with_refused(text, std::env::args().skip(1));
    }
    output::note(format_args!("rollscope: {text}"));
    match failure {
        Failure::Usage(_) => Exit::Usage,
        Failure::Other(_) => Exit::Failed,
    }
}

/// Prints what clap has to say: help and version on stdout, errors on stderr.
pub(crate) fn of_parse(error: &clap::Error) -> Exit {
    let wanted =
        matches!(error.kind(), clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion);
    let plain = error.render().to_string();
    let shown = with_refused(plain.clone(), std::env::args().skip(1));
    if wanted || without_user_info(&shown) == plain {
        // Where not even this can be written nobody is there to be told.
        drop(error.print());
    } else {
        shown.lines().for_each(|line| output::note(format_args!("{line}")));
    }
    if wanted { Exit::Done } else { Exit::Usage }
}

/// The text with each argument in it as a refused one is shown.
fn with_refused(mut text: String, arguments: impl Iterator<Item = String>) -> String {
    for argument in arguments {
        // A flag's value may be told alone, and the flag with it.
        let value = argument.split_once('=').filter(|(flag, _)| flag.starts_with("--"));
        for told in [value.map(|(_, value)| value), Some(&*argument)].into_iter().flatten() {
            let shown = refused(told);
            if shown != told {
                text = text.replace(told, &shown);
            }
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<std::io::Error>();
    cause.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

// === impl Exit ===

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
        })
    }
}

// === impl Failure ===

impl Failure {
    /// A usage error.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(error.into())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.into())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.into())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_refused_argument_is_told_without_its_secrets() {
        let told = |text: &str, arguments: &[&str]| {
            super::with_refused(text.to_owned(), arguments.iter().map(|&argument| argument.to_owned()))
        };
        let url = "http://me:a/b c@h";
        assert_eq!(told("no server: http://me:a/b c@h", &["top", url]), "no server: http://<redacted>@h");
        let flag = format!("--server={url}");
        assert_eq!(told("no server: http://me:a/b c@h", &[&flag]), "no server: http://<redacted>@h");
        assert_eq!(told("no server: h", &["top", "h"]), "no server: h");
    }
}
