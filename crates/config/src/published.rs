//! A server's configuration after start: read-only, with sourced overrides.

use std::sync::Arc;

use parking_lot::RwLock;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::declare::Options;
use crate::error::ConfigError;

/// A server's configuration, published once and passed down as a handle; clones share one state.
///
/// The start-up values never change. The one way to change what is in force is
/// [`override_fields`](Published::override_fields):
///
/// ```
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" { serving { /** Port. */ port: u16 = 1; } } }
/// let published = Published::publish(O::from_args([""; 0]).unwrap());
/// published.override_fields("who", [("port", 2.into())]).unwrap();
/// assert_eq!((published.startup().port, published.resolved().port), (1, 2));
/// ```
///
/// Any other does not compile:
///
/// ```compile_fail,E0594
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" { serving { /** Port. */ port: u16 = 1; } } }
/// let published = Published::publish(O::from_args([""; 0]).unwrap());
/// published.startup().port = 2;
/// ```
///
/// ```compile_fail,E0594
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" { serving { /** Port. */ port: u16 = 1; } } }
/// let published = Published::publish(O::from_args([""; 0]).unwrap());
/// published.resolved().port = 2;
/// ```
#[derive(Debug, Clone)]
pub struct Published<T> {
    shared: Arc<Shared<T>>,
}

/// One entry of the override log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Override {
    /// Who changed it, as a dotted name: `metrics_reporter.ipc_endpoint`.
    pub source: String,
    /// The fields and their values; secrets redacted.
    pub fields: Map<String, Value>,
}

#[derive(Debug)]
struct Shared<T> {
    startup: T,
    state: RwLock<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// The start-up values overlaid by the log.
    resolved: Arc<T>,
    log: Vec<Override>,
}

// === impl Published ===

impl<T: Options> Published<T> {
    /// Publishes the options that a server was started with.
    pub fn publish(options: T) -> Self {
        let state = State { resolved: Arc::new(options.clone()), log: Vec::new() };
        Self { shared: Arc::new(Shared { startup: options, state: RwLock::new(state) }) }
    }

    /// The options that the server was started with.
    pub fn startup(&self) -> &T {
        &self.shared.startup
    }

    /// The options in force: the start-up values overlaid by the overrides so far. A snapshot.
    pub fn resolved(&self) -> Arc<T> {
        Arc::clone(&self.shared.state.read().resolved)
    }

    /// Changes the options in force, all of the fields or none, and logs the change with its source.
    ///
    /// # Errors
    /// An unknown field, a value of the wrong type or outside its range, or a contradiction of the result: then
    /// nothing has changed. No fields at all is no change, and not logged.
    pub fn override_fields<'a>(
        &self,
        source: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<(), ConfigError> {
        let mut state = self.shared.state.write();
        let mut resolved = T::clone(&state.resolved);
        let mut logged = Map::new();
        for (field, value) in fields {
            let shown = resolved.set(field, &value, source)?;
            logged.insert(field.to_owned(), shown);
        }
        if logged.is_empty() {
            return Ok(());
        }
        resolved.check()?;
        state.resolved = Arc::new(resolved);
        state.log.push(Override { source: source.to_owned(), fields: logged });
        Ok(())
    }

    /// The overrides so far, oldest first.
    pub fn overrides(&self) -> Vec<Override> {
        self.shared.state.read().log.clone()
    }

    /// The start-up values as JSON, secrets redacted.
    pub fn startup_json(&self) -> Map<String, Value> {
        self.shared.startup.to_json()
    }

    /// The values in force as JSON, secrets redacted.
    pub fn resolved_json(&self) -> Map<String, Value> {
        self.resolved().to_json()
    }
}
