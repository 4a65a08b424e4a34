//! The table of options: what help, documentation and the readers of flags and environment go by.

use std::fmt;

use serde_json::Value;

use crate::kind::Kind;
use crate::redact::{REDACTED, is_redacted, is_worker, refused, without_any_user_info, without_user_info};
use crate::sources;

/// What an option is about. A server's options are grouped by it, in its declaration and in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// The hardware that computes.
    Device,
    /// The checkpoint and its tokenizer.
    Model,
    /// How the forward pass is computed.
    Exec,
    /// Batching and queueing.
    Schedule,
    /// The KV cache and other memory.
    Memory,
    /// Speculative decoding.
    Spec,
    /// Low-rank adapters.
    Lora,
    /// Multimodal input.
    Mm,
    /// Prefill/decode disaggregation.
    Disagg,
    /// HTTP, addresses, peers.
    Serving,
    /// Recording, metrics, logs.
    Observability,
}

/// One option, as declared.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionSpec {
    /// The field's name in the options struct and in JSON.
    pub name: &'static str,
    /// The flag, without its dashes.
    pub flag: String,
    /// Other spellings of the flag, without dashes.
    pub aliases: Vec<&'static str>,
    /// Environment variables, the first one set to a non-empty text counts. The first is the option's own; the
    /// others are names that the field uses elsewhere.
    pub env: Vec<String>,
    /// The table of a configuration file in which the option is a key: the environment's name without `ROLLSCOPE_`, in
    /// small letters.
    pub section: String,
    /// What the option is about.
    pub namespace: Namespace,
    /// The doc comment. Its first paragraph is the short help.
    pub help: String,
    /// What a value is called in the help.
    pub value_name: Option<&'static str>,
    /// The default; `None` for an option that must be given.
    pub default: Option<Value>,
    /// Which values are allowed.
    pub kind: Kind,
    /// Whether help leaves the option out.
    pub hidden: bool,
    /// Whether the value is shown as `<redacted>` wherever it would be shown.
    pub secret: bool,
    /// Whether its values name workers, which may be ranks of a server. In any other value what stands before an @ is who logs in.
    pub ranked: bool,
}

// === impl Namespace ===

impl Namespace {
    /// The namespace's name, as the field writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Model => "model",
            Self::Exec => "exec",
            Self::Schedule => "schedule",
            Self::Memory => "memory",
            Self::Spec => "spec",
            Self::Lora => "lora",
            Self::Mm => "mm",
            Self::Disagg => "disagg",
            Self::Serving => "serving",
            Self::Observability => "observability",
        }
    }

    /// The heading of the namespace's options in the help.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Device => "Device",
            Self::Model => "Model",
            Self::Exec => "Execution",
            Self::Schedule => "Scheduling",
            Self::Memory => "Memory",
            Self::Spec => "Speculative decoding",
            Self::Lora => "LoRA",
            Self::Mm => "Multimodal",
            Self::Disagg => "Prefill/decode disaggregation",
            Self::Serving => "Serving",
            Self::Observability => "Observability",
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl OptionSpec ===

impl OptionSpec {
    /// The value as it may be shown: a secret that is set becomes `<redacted>`, and so does who logs in by a URL.
    pub(crate) fn shown(&self, value: Value) -> Value {
        let is_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        if self.secret && !is_nothing { Value::from(REDACTED) } else { self.without_user_info(value) }
    }

    /// One of its texts that is refused, as it may be shown.
    pub(crate) fn refused(&self, text: &str) -> String {
        if self.secret {
            REDACTED.to_owned()
        } else if self.ranked && is_worker(text) {
            text.to_owned()
        } else {
            refused(text)
        }
    }

    fn without_user_info(&self, value: Value) -> Value {
        match value {
            Value::String(text) if self.ranked => Value::from(without_user_info(&text)),
            Value::String(text) => Value::from(without_any_user_info(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.without_user_info(item)).collect(),
            other => other,
        }
    }

    /// Whether the option has this name in a configuration file: the field's name, a flag, or an alias of it, with
    /// underscores or dashes.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        let key = key.replace('_', "-");
        key == self.flag || self.aliases.contains(&key.as_str())
    }

    /// How a configuration file says this value; `None` where it cannot, as that a text is not set, or should not, as a secret.
    pub fn in_file(&self, value: &Value) -> Option<String> {
        let value = sources::toml(&self.kind, value).filter(|_| !self.secret && !is_redacted(value))?;
        Some(value.to_string())
    }

    /// The default as text for help; `None` if there is none to speak of.
    pub fn default_text(&self) -> Option<String> {
        match self.shown(self.default.clone()?) {
            Value::Null | Value::Bool(false) => None,
            Value::Array(items) if items.is_empty() => None,
            Value::String(text) if text.is_empty() => None,
            Value::Array(items) => Some(items.iter().map(plain).collect::<Vec<_>>().join(" ")),
            value => Some(plain(&value)),
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
