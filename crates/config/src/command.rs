//! Options on a command line and in an environment: the flags, their help, and what was given.

use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;

use crate::error::{ConfigError, Place};
use crate::kind::Kind;
use crate::spec::OptionSpec;

/// The flag of an option. Words are taken as they are: what they mean is decided by [`given`], for flags and
/// environment variables alike.
pub(crate) fn arg(spec: &OptionSpec) -> Arg {
    let arg = Arg::new(spec.name)
        .long(spec.flag.clone())
        .visible_aliases(spec.aliases.clone())
        .help_heading(spec.namespace.heading())
        .help(short_help(spec))
        .long_help(long_help(spec))
        .hide(spec.hidden)
        .allow_negative_numbers(true);
    let item = match &spec.kind {
        Kind::Optional(inner) => inner,
        kind => kind,
    };
    let name = spec.value_name.map_or_else(|| value_name(item), str::to_owned);
    match item {
        Kind::Flag => last(arg).num_args(0..=1).require_equals(true).value_name("true|false"),
        Kind::List(item) if matches!(**item, Kind::Pair(..)) => {
            arg.action(ArgAction::Append).num_args(1..=2).value_name(name)
        }
        // Scripts give a list that may be empty as `--worker-urls $URLS`.
        Kind::List(_) => arg.action(ArgAction::Append).num_args(0..).value_name(name),
        _ => last(arg).value_name(name),
    }
}

/// Given several times, the last one counts: scripts put what was asked for behind what they have themselves.
fn last(arg: Arg) -> Arg {
    let name = arg.get_id().clone();
    arg.action(ArgAction::Set).overrides_with(name)
}

/// The value given by flag.
pub(crate) fn flag(spec: &OptionSpec, matches: &ArgMatches) -> Result<Option<(Value, Place)>, ConfigError> {
    let Ok(Some(occurrences)) = matches.try_get_occurrences::<String>(spec.name) else { return Ok(None) };
    let occurrences: Vec<Vec<String>> = occurrences.map(|words| words.cloned().collect()).collect();
    let place = Place::Flag(format!("--{}", spec.flag));
    match spec.kind.parse(&occurrences) {
        Ok(value) => Ok(Some((value, place))),
        Err(unfit) => Err(spec.invalid(&unfit, place)),
    }
}

/// The value given by environment.
pub(crate) fn variable(
    spec: &OptionSpec,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<(Value, Place)>, ConfigError> {
    // A variable set to nothing is how a shell unsets it for one command.
    let set =
        spec.env.iter().find_map(|name| env(name).filter(|text| !text.is_empty()).map(|text| (name, text)));
    let Some((name, text)) = set else { return Ok(None) };
    let place = Place::Environment(name.clone());
    match spec.kind.parse_text(&text) {
        Ok(value) => Ok(Some((value, place))),
        Err(unfit) => Err(spec.invalid(&unfit, place)),
    }
}

/// A doc comment's first paragraph, on one line.
pub(crate) fn short(doc: &str) -> String {
    let paragraph = doc.trim().lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = paragraph.collect::<Vec<_>>().join(" ");
    line.strip_suffix('.').unwrap_or(&line).to_owned()
}

/// A doc comment without the space that follows each `///`.
pub(crate) fn long(doc: &str) -> String {
    doc.trim().lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

fn short_help(spec: &OptionSpec) -> String {
    let help = short(&spec.help);
    match spec.default_text() {
        Some(default) => format!("{help} [default: {default}]"),
        None => help,
    }
}

fn long_help(spec: &OptionSpec) -> String {
    let mut notes = vec![format!("[env: {}]", spec.env.join(", "))];
    if let Some(default) = spec.default_text() {
        notes.push(format!("[default: {default}]"));
    }
    if spec.default.is_none() {
        notes.push("[required]".to_owned());
    }
    if spec.kind.is_telling() {
        notes.push(format!("[allowed: {}]", spec.kind));
    }
    format!("{}\n\n{}", spec.help, notes.join("\n"))
}

fn value_name(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "true|false".to_owned(),
        Kind::Text => "TEXT".to_owned(),
        Kind::Integer { .. } => "N".to_owned(),
        Kind::Number { .. } => "NUMBER".to_owned(),
        Kind::Choice(spellings) => spellings.join("|"),
        Kind::Optional(inner) | Kind::List(inner) => value_name(inner),
        Kind::Pair(first, _) => value_name(first),
    }
}
