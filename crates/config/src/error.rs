//! What may be wrong with a configuration.

use std::fmt;

use serde_json::Value;

use crate::spec::OptionSpec;

/// A configuration that cannot be used: a usage error, exit code 2 of the command line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line itself cannot be read: an unknown flag, a flag without its value.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// An option without default was given nowhere.
    #[error("missing {flag} (or environment variable {env})")]
    Missing {
        /// The flag, with its dashes.
        flag: String,
        /// The environment variable that would do as well.
        env: String,
    },
    /// A value is not one that the option may have.
    #[error("invalid value for {place}: expected {expected}, got {value}")]
    Invalid {
        /// Where the value came from.
        place: Place,
        /// What is allowed, as a noun phrase: `a whole number in 1..=65535`.
        expected: String,
        /// The value, quoted as JSON; `<redacted>` when the option is secret.
        value: String,
    },
    /// A configuration file that cannot be read or is no TOML.
    #[error("cannot read the configuration file {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system or the parser says.
        reason: String,
    },
    /// A configuration file has a key that nothing reads.
    #[error("{path}: unknown {what}: {name}{hint}")]
    UnknownKey {
        /// The file.
        path: String,
        /// `option` or `section`.
        what: &'static str,
        /// The name, an option's with its section.
        name: String,
        /// What may have been meant, with the words around it; or nothing.
        hint: String,
    },
    /// An override names a field that the server does not have.
    #[error("unknown option in override by {override_source}: {field}")]
    UnknownField {
        /// The source that the override was to be logged with.
        override_source: String,
        /// The name that no option has.
        field: String,
    },
    /// An option that is known and that there is not.
    #[error("--{flag} is not an option here: {reason}")]
    Refused {
        /// The flag, without its dashes.
        flag: String,
        /// Why not, and what there is instead.
        reason: String,
    },
    /// Options that are fine by themselves contradict each other.
    #[error("conflicting options: {0}")]
    Conflict(String),
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A command-line flag, with its dashes.
    Flag(String),
    /// An environment variable.
    Environment(String),
    /// A key of a configuration file.
    File {
        /// The file.
        path: String,
        /// The section and the key in it.
        key: String,
    },
    /// The declared default of the named option: a fault of the declaration.
    Default(&'static str),
    /// An override of the named option, and the override's source.
    Override {
        /// The option.
        field: &'static str,
        /// Who asked.
        source: String,
    },
}

// === impl ConfigError ===

impl ConfigError {
    /// A contradiction with each of these values that it tells as a refused one is shown: whoever wrote it knows what is wrong
    /// with a value, and not whether there is a secret in it.
    pub(crate) fn hiding(self, values: &[(OptionSpec, Value)]) -> Self {
        let Self::Conflict(mut text) = self else { return self };
        for (spec, value) in values {
            hide(&mut text, spec, value);
        }
        Self::Conflict(text)
    }
}

fn hide(text: &mut String, spec: &OptionSpec, value: &Value) {
    match value {
        Value::String(value) if !value.is_empty() => {
            let shown = spec.refused(value);
            if shown != *value {
                *text = replace_words(text, value, &shown);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| hide(text, spec, item)),
        _ => {}
    }
}

/// Replaces a text where it is no part of a longer word: a short one may be in any.
fn replace_words(text: &str, told: &str, shown: &str) -> String {
    let mut replaced = String::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(told) {
        let (before, after) = (text[..at].chars().next_back(), text[at + told.len()..].chars().next());
        let is_word = [before, after].into_iter().flatten().all(|c| !c.is_alphanumeric());
        replaced.extend([&text[begin..at], if is_word { shown } else { told }]);
        begin = at + told.len();
    }
    replaced + &text[begin..]
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::File { path, key } => write!(f, "{key} in {path}"),
            Self::Default(field) => write!(f, "default of {field}"),
            Self::Override { field, source } => write!(f, "{field} (override by {source})"),
        }
    }
}
