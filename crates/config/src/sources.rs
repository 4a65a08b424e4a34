//! Where values come from besides the command line: the environment and a configuration file.

use std::path::Path;

use clap::ArgMatches;
use serde_json::Value;

use crate::command;
use crate::error::{ConfigError, Place};
use crate::kind::Kind;
use crate::spec::OptionSpec;

/// The environment and the configuration file, passed in so that nothing here asks the process for them.
pub struct Sources<'a> {
    /// A variable of the environment by its name.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The configuration file.
    pub file: Option<ConfigFile>,
}

/// A configuration file: TOML with a table per section, whose keys are options.
///
/// ```
/// # use rollscope_config::ConfigFile;
/// let file = ConfigFile::parse("fleet.toml", "[gateway]\nport = 30000\nprefill = [['http://a', 8998]]\n")?;
/// # Ok::<(), rollscope_config::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ConfigFile {
    path: String,
    sections: toml::Table,
}

// === impl Sources ===

impl Sources<'_> {
    /// No variable, no file.
    pub fn none() -> Self {
        Sources { env: &|_| None, file: None }
    }

    /// The option's value and where it comes from.
    pub(crate) fn origin(
        &self,
        spec: &OptionSpec,
        matches: &ArgMatches,
    ) -> Result<(Value, Place), ConfigError> {
        if let Some(given) = command::flag(spec, matches)? {
            return Ok(given);
        }
        if let Some(given) = command::variable(spec, self.env)? {
            return Ok(given);
        }
        if let Some(given) = self.file.as_ref().map_or(Ok(None), |file| file.value(spec))? {
            return Ok(given);
        }
        let place = Place::Default(spec.name);
        match spec.default.clone() {
            Some(value) => Ok((spec.admit(value, || place.clone())?, place)),
            None => Err(ConfigError::Missing { flag: format!("--{}", spec.flag), env: spec.env[0].clone() }),
        }
    }

    /// Refuses keys, in the sections of these options, that are none of them.
    pub(crate) fn refuse_unknown(&self, specs: &[OptionSpec]) -> Result<(), ConfigError> {
        self.file.as_ref().map_or(Ok(()), |file| file.refuse_unknown(specs))
    }
}

impl std::fmt::Debug for Sources<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("file", &self.file).finish_non_exhaustive()
    }
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is no TOML, or has values outside its sections.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let shown = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&shown, &text),
            Err(error) => Err(ConfigError::File { path: shown, reason: error.to_string() }),
        }
    }

    /// Parses a file's text; errors call it by its path.
    ///
    /// # Errors
    /// Text that is no TOML, or has values outside its sections.
    pub fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        let unfit = |reason: String| ConfigError::File { path: path.to_owned(), reason };
        let sections: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            unfit(format!("line {line}: {}", error.message()))
        })?;
        if let Some((key, _)) = sections.iter().find(|(_, value)| !value.is_table()) {
            return Err(unfit(format!("options stand in sections, such as [gateway], and {key} in none")));
        }
        Ok(Self { path: path.to_owned(), sections })
    }

    /// Refuses sections that nobody reads.
    ///
    /// # Errors
    /// The first such section, with the name that it is most like.
    pub fn refuse_unknown_sections(&self, known: &[String]) -> Result<(), ConfigError> {
        match self.sections.keys().find(|name| !known.contains(name)) {
            Some(name) => Err(self.unknown("section", name, name, known.iter().map(String::as_str))),
            None => Ok(()),
        }
    }

    fn refuse_unknown(&self, specs: &[OptionSpec]) -> Result<(), ConfigError> {
        let of_sections = self.sections.iter().filter_map(|(name, value)| Some((name, value.as_table()?)));
        for (section, keys) in of_sections {
            let options: Vec<_> = specs.iter().filter(|spec| spec.section == *section).collect();
            if options.is_empty() {
                continue;
            }
            if let Some(key) = keys.keys().find(|key| !options.iter().any(|spec| spec.has_key(key))) {
                let names = options.iter().map(|spec| spec.name);
                return Err(self.unknown("option", &format!("{section}.{key}"), key, names));
            }
        }
        Ok(())
    }

    fn value(&self, spec: &OptionSpec) -> Result<Option<(Value, Place)>, ConfigError> {
        let Some(section) = self.sections.get(&spec.section).and_then(toml::Value::as_table) else {
            return Ok(None);
        };
        let mut given = section.iter().filter(|(key, _)| spec.has_key(key));
        let Some((key, value)) = given.next() else { return Ok(None) };
        if let Some((other, _)) = given.next() {
            return Err(ConfigError::Conflict(format!(
                "{} has both {key} and {other} in [{}], which are one option",
                self.path, spec.section
            )));
        }
        let place = Place::File { path: self.path.clone(), key: format!("{}.{key}", spec.section) };
        let value = spec.kind.normalize(json(value));
        Ok(Some((spec.admit(value, || place.clone())?, place)))
    }

    fn unknown<'n>(
        &self,
        what: &'static str,
        shown: &str,
        name: &str,
        known: impl Iterator<Item = &'n str>,
    ) -> ConfigError {
        let near =
            known.map(|known| (strsim::damerau_levenshtein(&name.replace('-', "_"), known), known)).min();
        let hint = near.filter(|(distance, _)| *distance <= 2);
        let hint = hint.map_or(String::new(), |(_, known)| format!(" (did you mean {known}?)"));
        ConfigError::UnknownKey { path: self.path.clone(), what, name: shown.to_owned(), hint }
    }
}

/// The value as a file has it, so that [`Kind::normalize`] makes the value of it again; `None` where no file has it.
pub(crate) fn toml(kind: &Kind, value: &Value) -> Option<toml::Value> {
    match (kind, value) {
        (Kind::Optional(inner), Value::Null) if **inner != Kind::Text => Some(toml::Value::from("none")),
        (Kind::Optional(inner), value) => toml(inner, value),
        (Kind::List(item), Value::Array(values)) => {
            values.iter().map(|value| toml(item, value)).collect::<Option<_>>().map(toml::Value::Array)
        }
        (Kind::Pair(first, second), Value::Array(values)) => match &values[..] {
            [one, Value::Null] => Some(toml::Value::Array(vec![toml(first, one)?])),
            [one, two] => Some(toml::Value::Array(vec![toml(first, one)?, toml(second, two)?])),
            _ => None,
        },
        (_, Value::Bool(flag)) => Some(toml::Value::from(*flag)),
        (_, Value::String(text)) => Some(toml::Value::from(text.as_str())),
        (Kind::Number { .. }, Value::Number(number)) => number.as_f64().map(toml::Value::from),
        (_, Value::Number(number)) => number.as_i64().map(toml::Value::from),
        _ => None,
    }
}

/// The value as JSON. TOML's dates, and numbers that JSON does not have, become text, which only options of text take.
fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) if number.is_finite() => Value::from(*number),
        toml::Value::Float(number) => Value::from(number.to_string()),
        toml::Value::Boolean(flag) => Value::from(*flag),
        toml::Value::Datetime(moment) => Value::from(moment.to_string()),
        toml::Value::Array(values) => values.iter().map(json).collect(),
        toml::Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), json(value))).collect(),
    }
}
