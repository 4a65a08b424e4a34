//! `rollscope config`: the options of every command, as they would be in force and as documentation.

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use rollscope_config::{ConfigError, OptionSet, OptionSpec, Place, Sources};
use serde_json::{Value, json};

use super::{demo, engine, export, fpm, gateway, import, report, rollout, sources, track, view};
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
    Configurable::of::<fpm::TailOptions>("fpm-tail", fpm::tail_command),
    Configurable::of::<fpm::TopOptions>("fpm-top", fpm::top_command),
    Configurable::of::<fpm::PlanOptions>("fpm-plan", fpm::plan_command),
];

pub(crate) fn command() -> Command {
    let json = Arg::new("as-json").long("json").action(ArgAction::SetTrue).help("As one JSON object");
    let show = Command::new("show")
        .about("Show the options of a command as they would be in force, each with where it comes from, as a file for --config")
        .arg(json)
        .subcommand_required(true)
        .subcommands(shown_commands());
    let docs = Command::new("docs")
        .about("Print the reference of all options, or of one command's, in Markdown")
        .arg(Arg::new("of").value_name("COMMAND").num_args(0..));
    Command::new("config")
        .about("Show and document configuration")
        .subcommand_required(true)
        .subcommands([show, docs])
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("show", matches)) => {
            let Some((name, of)) = matches.subcommand() else { return Ok(()) };
            let (name, of) = match of.subcommand() {
                Some((inner, of)) => (format!("{name}-{inner}"), of),
                None => (name.to_owned(), of),
            };
            let Some(command) = COMMANDS.iter().find(|command| command.name == name) else { return Ok(()) };
            let origins = (command.origins)(of, &sources(of)?)?;
            if matches.get_flag("as-json") {
                output::line(format_args!("{}", json_of(&origins)))?;
                return Ok(());
            }
            for line in file_of(command, &origins) {
                output::line(format_args!("{line}"))?;
            }
            Ok(())
        }
        Some(("docs", matches)) => {
            let words: Vec<&str> =
                matches.get_many::<String>("of").into_iter().flatten().map(String::as_str).collect();
            let of = words.join(" ").replace('-', " ");
            let is_asked = |command: &&Configurable| {
                let words = command.words();
                of.is_empty() || words == of || words.starts_with(&format!("{of} "))
            };
            let asked: Vec<&Configurable> = COMMANDS.iter().filter(is_asked).collect();
            if asked.is_empty() {
                let known = COMMANDS.iter().map(Configurable::words).collect::<Vec<_>>().join(", ");
                return Err(Failure::Usage(anyhow!(
                    "no command of that name, which is one of {known}: {of}"
                )));
            }
            for line in docs(&asked) {
                output::line(format_args!("{line}"))?;
            }
            Ok(())
        }
        // clap refuses everything else before.
        _ => Ok(()),
    }
}

/// The commands as they are called on a command line: what is two words there is two words here, or one with a dash.
fn shown_commands() -> Vec<Command> {
    let optional =
        |of: &Configurable, name: &'static str| (of.command)().name(name).mut_args(|arg| arg.required(false));
    let mut commands: Vec<Command> = Vec::new();
    for of in COMMANDS {
        let Some((outer, inner)) = of.name.split_once('-') else {
            commands.push(optional(of, of.name));
            continue;
        };
        commands.push(optional(of, of.name).hide(true));
        let known = commands.iter_mut().find(|command| command.get_name() == outer);
        if let Some(group) = known {
            *group = std::mem::take(group).subcommand(optional(of, inner));
        } else {
            let group = Command::new(outer).about("Those of its subcommands").subcommand_required(true);
            commands.push(group.subcommand(optional(of, inner)));
        }
    }
    commands
}

/// The sections that a configuration file may have.
pub(super) fn sections() -> Vec<String> {
    let mut sections: Vec<_> =
        COMMANDS.iter().flat_map(|command| (command.specs)()).map(|spec| spec.section).collect();
    sections.sort();
    sections.dedup();
    sections
}

fn json_of(origins: &[Origin]) -> Value {
    let options = origins.iter().map(|(spec, value, place)| {
        let shown = json!({
            "value": value,
            "source": source(value.as_ref(), place),
            "namespace": spec.namespace.name(),
        });
        (spec.name.to_owned(), shown)
    });
    Value::Object(options.collect())
}

/// The options as a configuration file: its lines. What a file cannot say, as that a text is not set, and what it should not, as
/// secrets, are comments.
fn file_of(command: &Configurable, origins: &[Origin]) -> Vec<String> {
    let mut lines = vec![format!("# rollscope {}", command.words())];
    for section in each_once(origins.iter().map(|(spec, ..)| &*spec.section)) {
        lines.push(format!("[{section}]"));
        let of_section = || origins.iter().filter(|(spec, ..)| spec.section == section);
        for namespace in each_once(of_section().map(|(spec, ..)| spec.namespace)) {
            lines.push(format!("# {namespace}"));
            let of_namespace = of_section().filter(|(spec, ..)| spec.namespace == namespace);
            lines.extend(of_namespace.map(|(spec, value, place)| {
                let told = source(value.as_ref(), place).replace(char::is_control, " ");
                let said = value.as_ref().and_then(|value| spec.in_file(value));
                let shown = || value.as_ref().map_or_else(|| "?".to_owned(), Value::to_string);
                let (mark, text) = said.map_or_else(|| ("# ", shown()), |text| ("", text));
                format!("{mark}{} = {text}  # {told}", spec.name)
            }));
        }
    }
    lines
}

/// Where a value comes from, in words.
fn source(value: Option<&Value>, place: &Place) -> String {
    match place {
        Place::Default(_) if value.is_none() => "must be given".to_owned(),
        Place::Default(_) => "default".to_owned(),
        place => place.to_string(),
    }
}

const PREFACE: [&str; 7] = [
    "# Options",
    "",
    "Made by `rollscope config docs`. A flag beats an environment variable, that beats the file given by `--config FILE`",
    "(or `ROLLSCOPE_CONFIG`), and that beats the default. The file is TOML with a table for each command; its keys are the",
    "names of this page, with underscores or dashes. `rollscope config show COMMAND` prints such a file, of what would be",
    "in force, with where each value comes from. A secret, and who logs in by a URL, is shown as `<redacted>`: there, in",
    "`/server_info`, in a run and in errors.",
];

/// The reference of commands: its lines, in Markdown.
fn docs(of: &[&Configurable]) -> Vec<String> {
    let mut lines = PREFACE.map(str::to_owned).to_vec();
    for command in of {
        lines.extend([String::new(), format!("## rollscope {}", command.words())]);
        if let Some(about) = (command.command)().get_about() {
            lines.extend([String::new(), format!("{about}.")]);
        }
        let specs: Vec<_> = (command.specs)().into_iter().filter(|spec| !spec.hidden).collect();
        for namespace in each_once(specs.iter().map(|spec| spec.namespace)) {
            lines.extend([String::new(), format!("### {}: {namespace}", command.words()), String::new()]);
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
fn each_once<T: PartialEq>(of: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in of {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

// === impl Configurable ===

impl Configurable {
    const fn of<T: OptionSet>(name: &'static str, command: fn() -> Command) -> Self {
        Self { name, command, specs: T::specs, origins: T::origins }
    }

    /// As it is called on a command line: `fpm-tail` is `fpm tail`.
    fn words(&self) -> String {
        self.name.replace('-', " ")
    }
}

#[cfg(test)]
mod tests {
    use rollscope_config::ConfigFile;

    use super::*;

    #[test]
    fn the_page_of_options_is_what_the_code_says() {
        let page = include_str!("../../../../docs/options.md");
        let wanted = docs(&COMMANDS.iter().collect::<Vec<_>>()).join("\n") + "\n";
        assert!(page == wanted, "options have changed: run `cargo run -- config docs >docs/options.md`");
    }

    #[test]
    fn every_subcommand_with_options_of_its_own_has_them_declared() {
        let documented: Vec<String> = COMMANDS.iter().map(Configurable::words).collect();
        let all = crate::command();
        let commands = all.get_subcommands().filter(|command| command.get_name() != "config");
        for command in commands {
            let name = command.get_name();
            let within: Vec<_> =
                command.get_subcommands().map(|of| format!("{name} {}", of.get_name())).collect();
            for words in if within.is_empty() { vec![name.to_owned()] } else { within } {
                assert!(documented.contains(&words), "{words}");
            }
        }
        for command in COMMANDS {
            let flags: Vec<_> = (command.specs)().into_iter().map(|spec| spec.flag).collect();
            for arg in (command.command)().get_arguments().filter_map(|arg| arg.get_long()) {
                assert!(flags.iter().any(|flag| flag == arg), "{}: --{arg}", command.name);
            }
        }
    }

    #[test]
    fn what_is_shown_is_a_file_that_says_the_same() {
        let hard = |name: &str| match name {
            "ROLLSCOPE_GATEWAY_RECORD" => Some("a\u{7f}\"\\'#".to_owned()),
            "ROLLSCOPE_GATEWAY_WORKER_URLS" => Some("http://a,http://b".to_owned()),
            "ROLLSCOPE_GATEWAY_TRACK" => Some("jsonl".to_owned()),
            "ROLLSCOPE_ENGINE_RANDOM_SEED" => Some("7".to_owned()),
            _ => None,
        };
        for command in COMMANDS {
            let matches = || {
                let command = (command.command)().mut_args(|arg| arg.required(false));
                command.try_get_matches_from(["rollscope"]).unwrap()
            };
            let origins = (command.origins)(&matches(), &Sources { env: &hard, file: None }).unwrap();
            let text = file_of(command, &origins).join("\n");
            let file = ConfigFile::parse("shown.toml", &text).unwrap();
            file.refuse_unknown_sections(&sections()).unwrap();
            let read = (command.origins)(&matches(), &Sources { env: &|_| None, file: Some(file) }).unwrap();
            for ((spec, shown, _), (_, read, place)) in origins.iter().zip(&read) {
                assert_eq!(shown, read, "{} {}\n{text}", command.name, spec.name);
                let is_said = matches!(place, Place::File { .. });
                let cannot = spec.secret || shown.as_ref().is_none_or(Value::is_null);
                assert!(is_said || cannot, "{} {}\n{text}", command.name, spec.name);
            }
        }
    }
}
