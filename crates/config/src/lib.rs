//! Options declared once, and a server's published read-only configuration.
//!
//! A server declares its options with [`options!`], grouped by [`Namespace`]: the doc comment is the help, the field
//! name gives the flag (`--field-name`), the environment variable (`ROLLSCOPE_SERVER_FIELD_NAME`) and the key of a
//! configuration file (`field_name` in the table `[server]`). The macro writes a plain struct with public fields and
//! implements [`Options`] for it, which gives the [`clap::Command`], the table of [`OptionSpec`]s that help and
//! documentation are made from, and [`OptionSet::resolve`]: flag beats environment beats file beats default.
//!
//! ```
//! use rollscope_config::{Choice, ConfigFile, OptionSet as _, Options as _, Published, Sources, options};
//!
//! /// Which half of a disaggregated pair a server is.
//! #[derive(Debug, Clone, Copy, PartialEq, Eq)]
//! pub enum Mode { Null, Prefill, Decode }
//!
//! impl Choice for Mode {
//!     const SPELLINGS: &'static [(&'static str, Self)] =
//!         &[("null", Self::Null), ("prefill", Self::Prefill), ("decode", Self::Decode)];
//! }
//!
//! options! {
//!     /// A server for the sake of example.
//!     pub struct ExampleOptions, environment "ROLLSCOPE_EXAMPLE" {
//!         serving {
//!             /// Address to listen on.
//!             host: String = "127.0.0.1";
//!             /// Port to listen on; 0 picks a free one.
//!             port: u16 = 30000;
//!             /// Servers to send to.
//!             worker_urls: Vec<String> = &[], alias("worker"), value_name("URL");
//!             /// Key that the administration calls must carry.
//!             admin_api_key: Option<String> = None, secret();
//!         }
//!         disagg {
//!             /// Which half this server is.
//!             disaggregation_mode: Mode = Mode::Null;
//!             /// Seconds that a request may wait for its peer.
//!             bootstrap_timeout_s: f64 = 300.0, range(0.1..=86400.0), env("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT");
//!             /// Prefill servers, each with its bootstrap port.
//!             prefill: Vec<(String, Option<u16>)> = &[];
//!         }
//!     }
//! }
//!
//! let matches = ExampleOptions::command("example")
//!     .get_matches_from(["example", "--port", "0", "--prefill", "http://a", "8998", "--prefill", "http://b", "none"]);
//! let env = |name: &str| (name == "ROLLSCOPE_EXAMPLE_DISAGGREGATION_MODE").then(|| "decode".to_owned());
//! let file = ConfigFile::parse("fleet.toml", "[example]\nhost = '::1'\nport = 8000\n")?;
//! let options = ExampleOptions::resolve(&matches, &Sources { env: &env, file: Some(file) })?;
//! assert_eq!((options.port, options.disaggregation_mode), (0, Mode::Decode));
//! assert_eq!(options.host, "::1");
//! assert_eq!(options.prefill, [("http://a".to_owned(), Some(8998)), ("http://b".to_owned(), None)]);
//!
//! let published = Published::publish(options);
//! published.override_fields("listener.bound", [("port", 40123.into())])?;
//! assert_eq!((published.startup().port, published.serving().port), (0, 40123));
//! assert_eq!(published.disagg().disaggregation_mode, Mode::Decode);
//! # Ok::<(), rollscope_config::ConfigError>(())
//! ```
//!
//! Invariant: nothing here is a static, reads the process's environment or writes a published value other than by
//! [`Published::override_fields`].

mod bag;
mod command;
mod declare;
mod error;
mod kind;
mod published;
mod redact;
mod sources;
mod spec;
mod value;

pub use bag::{Bag, HasBag, namespace};
pub use declare::{Declaration, OptionSet, Options};
pub use error::{ConfigError, Place};
pub use kind::Kind;
pub use published::{Override, Published, ScopedOverride};
pub use redact::{refused, without_user_info};
pub use sources::{ConfigFile, Sources};
pub use spec::{Namespace, OptionSpec};
pub use value::{Choice, Element, Numeric, OptionValue, Scalar};

/// What the code written by [`options!`] refers to; not for use by hand.
#[doc(hidden)]
pub mod macro_support {
    pub use serde_json::{Map, Value};
}
