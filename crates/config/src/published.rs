//! A server's configuration after start: read-only, with sourced overrides.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::declare::Options;
use crate::error::ConfigError;
use crate::spec::Namespace;

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
    /// How often it has changed these fields; only the latest is kept.
    #[serde(skip_serializing_if = "is_one")]
    pub times: NonZeroU64,
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
    log: Vec<Entry>,
    /// Overrides so far, undone ones too.
    numbered: u64,
}

/// An override as it was made.
struct Entry {
    number: u64,
    kind: Lasting,
    times: NonZeroU64,
    source: String,
    /// What was set, secrets in clear.
    fields: Vec<(String, Value)>,
    /// The fields as they may be shown.
    shown: Map<String, Value>,
}

/// How long an override holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasting {
    /// Until others change its fields.
    Stays,
    /// Until its scope ends.
    Scoped,
}

/// An override that is undone when this is dropped, with its entry in the log. Others that were made meanwhile stay.
///
/// For what holds as long as something lives, such as an address that is bound, and for tests. Where the options that
/// would be left contradict each other, because another override was made on the ground of this one, it stays.
#[derive(Debug)]
#[must_use = "dropping it undoes the override"]
pub struct ScopedOverride<T: Options> {
    published: Published<T>,
    number: Option<u64>,
}

// === impl Published ===

impl<T: Options> Published<T> {
    /// Publishes the options that a server was started with.
    pub fn publish(options: T) -> Self {
        let state = State { resolved: Arc::new(options.clone()), log: Vec::new(), numbered: 0 };
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

    /// Changes the options in force, all of the fields or none, and logs the change with its source. In the log it takes the
    /// place of an earlier one that came from the same source and changed the same fields.
    ///
    /// # Errors
    /// An unknown field, a value of the wrong type or outside its range, or a contradiction of the result: then
    /// nothing has changed. No fields at all is no change, and not logged.
    pub fn override_fields<'a>(
        &self,
        source: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<(), ConfigError> {
        self.apply(source, fields, Lasting::Stays).map(drop)
    }

    /// Like [`override_fields`](Self::override_fields), until the result is dropped.
    ///
    /// ```
    /// # use rollscope_config::{Options, Published, options};
    /// # options! { /** Example. */ struct O, environment "O" { serving { /** Port. */ port: u16 = 1; } } }
    /// let published = Published::publish(O::from_args([""; 0])?);
    /// let scope = published.override_scoped("test", [("port", 2.into())])?;
    /// assert_eq!((published.resolved().port, published.overrides().len()), (2, 1));
    /// drop(scope);
    /// assert_eq!((published.resolved().port, published.overrides().len()), (1, 0));
    /// # Ok::<(), rollscope_config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// As for an override that stays.
    pub fn override_scoped<'a>(
        &self,
        source: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<ScopedOverride<T>, ConfigError> {
        let number = self.apply(source, fields, Lasting::Scoped)?;
        Ok(ScopedOverride { published: self.clone(), number })
    }

    /// The overrides so far, oldest first.
    pub fn overrides(&self) -> Vec<Override> {
        let state = self.shared.state.read();
        let entry = |entry: &Entry| Override {
            source: entry.source.clone(),
            fields: entry.shown.clone(),
            times: entry.times,
        };
        state.log.iter().map(entry).collect()
    }

    /// The start-up values as JSON, secrets redacted.
    pub fn startup_json(&self) -> Map<String, Value> {
        self.shared.startup.to_json()
    }

    /// The values in force as JSON, secrets redacted.
    pub fn resolved_json(&self) -> Map<String, Value> {
        self.resolved().to_json()
    }

    /// The values in force as JSON, secrets redacted: a bag for each namespace that has options, by its name.
    pub fn bags(&self) -> Map<String, Value> {
        let values = self.resolved_json();
        let mut bags: BTreeMap<Namespace, Map<String, Value>> = BTreeMap::new();
        for spec in T::specs() {
            let value = values.get(spec.name).map(|value| (spec.name.to_owned(), value.clone()));
            bags.entry(spec.namespace).or_default().extend(value);
        }
        bags.into_iter().map(|(namespace, bag)| (namespace.name().to_owned(), Value::Object(bag))).collect()
    }

    /// Applies an override; returns its number, or nothing where there was nothing to change.
    fn apply<'a>(
        &self,
        source: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
        kind: Lasting,
    ) -> Result<Option<u64>, ConfigError> {
        let fields: Vec<(String, Value)> =
            fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
        if fields.is_empty() {
            return Ok(None);
        }
        let mut state = self.shared.state.write();
        let mut resolved = T::clone(&state.resolved);
        let mut shown = Map::new();
        for (field, value) in &fields {
            shown.insert(field.clone(), resolved.set(field, value, source)?);
        }
        resolved.check()?;
        state.resolved = Arc::new(resolved);
        state.numbered += 1;
        let number = state.numbered;
        // One that this hides wholly would only be kept to be read: a server that changes a field again and again must not
        // grow by it.
        let is_hidden = |entry: &Entry| {
            let both_stay = (entry.kind, kind) == (Lasting::Stays, Lasting::Stays);
            both_stay && entry.source == source && entry.shown.keys().eq(shown.keys())
        };
        let before = state.log.iter().position(is_hidden).map(|at| state.log.remove(at));
        let times = before.map_or(NonZeroU64::MIN, |entry| entry.times.saturating_add(1));
        state.log.push(Entry { number, kind, times, source: source.to_owned(), fields, shown });
        Ok(Some(number))
    }

    /// Takes an override out of the log, and makes the values in force anew from the others.
    fn undo(&self, number: u64) -> Result<(), ConfigError> {
        let mut state = self.shared.state.write();
        let mut resolved = self.shared.startup.clone();
        for entry in state.log.iter().filter(|entry| entry.number != number) {
            for (field, value) in &entry.fields {
                resolved.set(field, value, &entry.source)?;
            }
        }
        resolved.check()?;
        state.log.retain(|entry| entry.number != number);
        state.resolved = Arc::new(resolved);
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_one(times: &NonZeroU64) -> bool {
    times.get() == 1
}

// === impl ScopedOverride ===

impl<T: Options> Drop for ScopedOverride<T> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // One that cannot be undone stays in the log, for all to see.
            drop(self.published.undo(number));
        }
    }
}

// === impl Entry ===

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("source", &self.source)
            .field("fields", &self.shown)
            .finish_non_exhaustive()
    }
}
