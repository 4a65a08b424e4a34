//! `rollscope config`: the options of every command, as they would be in force and as documentation.

use clap::{Arg, ArgAction, ArgMatches, Command};
use rollscope_config::{ConfigError, Namespace, OptionSet, OptionSpec, Place, Sources};
use serde_json::{Value, json};

use super::{demo, engine, export, gateway, import, report, rollout, sources, track, view};
use crate::exit::Failure;
use crate::output;

/// A command that has options.
struct Configurable {
    name: &'static str,
    command: fn() -> Command,
    specs: fn() -> Vec<OptionSpec>,
    origins: fn(&ArgMatches, &Sources<'_>) -> Result<Vec<Origin>, ConfigError>,
}

/// An option, its value, and where that comes from.
type Origin = (OptionSpec, Option<Value>, Place);

const COMMANDS: &[Configurable] = &[
    Configurable::of::<demo::Options>("demo", demo::command),
    Configurable::of::<gateway::Options>("gateway", gateway::command),
    Configurable::of::<engine::Options>("engine", engine::command),
    Configurable::of::<rollout::Options>("rollout", rollout::command),
    Configurable::of::<report::Options>("report", report::command),
    Configurable::of::<view::Options>("view", view::command),
    Configurable::of::<import::Options>("import", import::command),
    Configurable::of::<export::Options>("export", export::command),
    Configurable::of::<track::Options>("track", track::command),
];

pub(crate) fn command() -> Command {
    let json = Arg::new("as-json").long("json").action(ArgAction::SetTrue).help("As one JSON object");
    let show = Command::new("show")
        .about("Show the options of a command as they would be in force, each with where it comes from")
        .arg(json)
        .subcommand_required(true)
        .subcommands(COMMANDS.iter().map(|of| (of.command)().mut_args(|arg| arg.required(false))));
    let names = COMMANDS.iter().map(|of| of.name).collect::<Vec<_>>();
    let docs = Command::new("docs")
        .about("Print the reference of all options, or of one command's, in Markdown")
        .arg(Arg::new("of").value_name("COMMAND").value_parser(names));
    Command::new("config")
        .about("Show and document configuration")
        .subcommand_required(true)
        .subcommands([show, docs])
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("show", matches)) => {
            let Some((name, of)) = matches.subcommand() else { return Ok(()) };
            let Some(command) = COMMANDS.iter().find(|command| command.name == name) else { return Ok(()) };
            let origins = (command.origins)(of, &sources(of)?)?;
            show(&origins, matches.get_flag("as-json"))
        }
        Some(("docs", matches)) => {
            for line in docs(matches.get_one::<String>("of").map(String::as_str)) {
                output::line(format_args!("{line}"))?;
            }
            Ok(())
        }
        // clap refuses everything else before.
        _ => Ok(()),
    }
}

/// The sections that a configuration file may have.
pub(super) fn sections() -> Vec<String> {
    let mut sections: Vec<_> =
        COMMANDS.iter().flat_map(|command| (command.specs)()).map(|spec| spec.section).collect();
    sections.sort();
    sections.dedup();
    sections
}

fn show(origins: &[Origin], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let options = origins.iter().map(|(spec, value, place)| {
            let shown = json!({
                "value": value,
                "source": source(value.as_ref(), place),
                "namespace": spec.namespace.name(),
            });
            (spec.name.to_owned(), shown)
        });
        output::line(format_args!("{}", Value::Object(options.collect())))?;
        return Ok(());
    }
    for namespace in namespaces(origins.iter().map(|(spec, ..)| spec.namespace)) {
        output::line(format_args!("[{namespace}]"))?;
        for (spec, value, place) in origins.iter().filter(|(spec, ..)| spec.namespace == namespace) {
            let shown = value.as_ref().map_or_else(|| "?".to_owned(), Value::to_string);
            output::line(format_args!("{} = {shown}  # {}", spec.name, source(value.as_ref(), place)))?;
        }
    }
    Ok(())
}

/// Where a value comes from, in words.
fn source(value: Option<&Value>, place: &Place) -> String {
    match place {
        Place::Default(_) if value.is_none() => "must be given".to_owned(),
        Place::Default(_) => "default".to_owned(),
        place => place.to_string(),
    }
}

const PREFACE: [&str; 6] = [
    "# Options",
    "",
    "Made by `rollscope config docs`. A flag beats an environment variable, that beats the file given by `--config FILE`",
    "(or `ROLLSCOPE_CONFIG`), and that beats the default. The file is TOML with a table for each command; its keys are the",
    "names of this page, with underscores or dashes. `rollscope config show COMMAND` tells what would be in force, and",
    "where each value comes from.",
];

/// The reference of all commands, or of one: its lines, in Markdown.
fn docs(of: Option<&str>) -> Vec<String> {
    let mut lines = PREFACE.map(str::to_owned).to_vec();
    for command in COMMANDS.iter().filter(|command| of.is_none_or(|name| name == command.name)) {
        lines.extend([String::new(), format!("## rollscope {}", command.name)]);
        if let Some(about) = (command.command)().get_about() {
            lines.extend([String::new(), format!("{about}.")]);
        }
        let specs: Vec<_> = (command.specs)().into_iter().filter(|spec| !spec.hidden).collect();
        for namespace in namespaces(specs.iter().map(|spec| spec.namespace)) {
            lines.extend([String::new(), format!("### {}: {namespace}", command.name), String::new()]);
            specs
                .iter()
                .filter(|spec| spec.namespace == namespace)
                .for_each(|spec| lines.extend(entry(spec)));
        }
    }
    lines
}

/// An option's entry in the reference.
fn entry(spec: &OptionSpec) -> Vec<String> {
    let flags = std::iter::once(spec.flag.as_str()).chain(spec.aliases.iter().copied());
    let flags = flags.map(|flag| format!("`--{flag}`")).collect::<Vec<_>>().join(", ");
    let default = match (&spec.default, spec.default_text()) {
        (None, _) => "must be given".to_owned(),
        (Some(_), Some(text)) => format!("default `{text}`"),
        (Some(_), None) => "not set by default".to_owned(),
    };
    let variables = spec.env.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let help = spec.help.lines().filter(|line| !line.is_empty()).map(|line| format!("  {line}"));
    std::iter::once(format!("- {flags}: {}; {default}", spec.kind))
        .chain(help)
        .chain([format!("  Key `{}` in `[{}]`; environment {variables}.", spec.name, spec.section)])
        .collect()
}

/// Each once, in order of appearance.
fn namespaces(of: impl Iterator<Item = Namespace>) -> Vec<Namespace> {
    let mut seen = Vec::new();
    for namespace in of {
        if !seen.contains(&namespace) {
            seen.push(namespace);
        }
    }
    seen
}

// === impl Configurable ===

impl Configurable {
    const fn of<T: OptionSet>(name: &'static str, command: fn() -> Command) -> Self {
        Self { name, command, specs: T::specs, origins: T::origins }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_options_is_what_the_code_says() {
        let page = include_str!("../../../../docs/options.md");
        let wanted = super::docs(None).join("\n") + "\n";
        assert!(page == wanted, "options have changed: run `cargo run -- config docs >docs/options.md`");
    }
}
