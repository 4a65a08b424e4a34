//! SGLang's router's options: each is one here, or refused by name.

use rollscope_config::{OptionSet as _, OptionSpec, Sources};

use super::{Options, RefusedOptions, command};

/// Flag, an example of its words, and the default, of each option of sglang-router 0.3.2's `--help`.
const ROUTER: &str = include_str!("sglang-router-0.3.2.tsv");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sglang-router-options.md");
const PREFACE: &str = "\
# The options of SGLang's router

Every option of sglang-router 0.3.2 is an option of `rollscope gateway` too, or is refused by name with a reason; nothing is
taken and ignored. `rollscope gateway --help` and [options.md](options.md) tell of all options, of which there are more.

| option | default there | here | meaning, or why it is refused |
|---|---|---|---|
";

struct RouterOption {
    flag: &'static str,
    words: &'static str,
    default: &'static str,
}

fn router_options() -> impl Iterator<Item = RouterOption> {
    ROUTER.lines().map(|line| {
        let [flag, words, default] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        RouterOption { flag: flag.strip_prefix("--").unwrap(), words, default }
    })
}

fn has(spec: &OptionSpec, flag: &str) -> bool {
    spec.flag == flag || spec.aliases.contains(&flag)
}

fn resolve(flag: &str, words: &str) -> Result<(), String> {
    let flag = format!("--{flag}");
    let beside: &[&str] = match flag.as_str() {
        "--prefill" | "--decode" => &["--pd-disaggregation"],
        "--tls-cert-path" => &["--tls-key-path", "FILE"],
        "--tls-key-path" => &["--tls-cert-path", "FILE"],
        "--client-cert-path" => &["--client-key-path", "FILE"],
        "--client-key-path" => &["--client-cert-path", "FILE"],
        _ => &[],
    };
    let args = beside.iter().copied().chain([flag.as_str()]).chain(words.split_whitespace());
    read(args)
}

fn read<'a>(args: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let matches = command().no_binary_name(true).try_get_matches_from(args);
    let matches = matches.map_err(|error| error.to_string())?;
    Options::resolve(&matches, &Sources::none()).map(drop).map_err(|error| error.to_string())
}

#[test]
fn every_option_of_sglangs_router_is_one_here_or_refused_by_name() {
    let refused = RefusedOptions::specs();
    assert_eq!(router_options().count(), 98);
    for RouterOption { flag, words, .. } in router_options() {
        let result = resolve(flag, words);
        let refusal = refused.iter().find(|spec| has(spec, flag));
        match refusal {
            None => assert_eq!(result, Ok(()), "--{flag} {words}"),
            // What says only what is so anyway.
            Some(_) if flag == "backend" => {
                assert_eq!(result, Ok(()), "--{flag} {words}");
            }
            Some(spec) => {
                let expected = format!("--{flag} is not an option here: {}", spec.help);
                assert_eq!(result, Err(expected), "--{flag} {words}");
            }
        }
    }
    assert!(resolve("backend", "openai").is_err());
    assert_eq!(resolve("history-backend", "none"), Ok(()));
    let unknown = refused.iter().find(|spec| !router_options().any(|option| has(spec, option.flag)));
    assert!(unknown.is_none(), "the router has no such option: {unknown:?}");
    for (flag, value, reason) in RefusedOptions::values() {
        let refusal = format!("--{flag} {value} is not an option here: {reason}");
        assert_eq!(resolve(&flag, value), Err(refusal));
    }
}

#[test]
fn command_lines_that_the_router_takes_are_taken() {
    for line in [
        "--worker-urls --port 1",
        "--cors-allowed-origins --request-id-headers --ca-cert-paths --control-plane-api-keys",
        "--port 1 --port 2 --policy random --policy cache_aware --cache-threshold 0.1 --cache-threshold 0.2",
        "--disable-retries --disable-retries --api-key a --api-key b",
        "--pd-disaggregation --pd-disaggregation --prefill http://a:1 NONE --prefill http://b:1 None --decode http://c:1",
    ] {
        assert_eq!(read(line.split_whitespace()), Ok(()), "{line}");
    }
}

#[test]
fn the_page_of_the_routers_options_is_what_the_code_says() {
    let (specs, refused) = (Options::specs(), RefusedOptions::specs());
    let mut page = PREFACE.to_owned();
    for RouterOption { flag, default, .. } in router_options() {
        let (here, meaning) = if let Some(spec) = refused.iter().find(|spec| has(spec, flag)) {
            ("refused".to_owned(), spec.help.clone())
        } else {
            let spec = specs.iter().find(|spec| has(spec, flag)).unwrap();
            let default = spec.default_text().map_or(String::new(), |default| format!("`{default}`"));
            let mut meaning = spec.help.split("\n\n").next().unwrap().replace('\n', " ");
            for (_, value, reason) in RefusedOptions::values().filter(|(refused, ..)| refused == flag) {
                meaning.extend([" `", value, "` is refused: ", reason]);
            }
            (default, meaning)
        };
        let meaning = meaning.replace('|', "\\|");
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        page.extend(["| `--", flag, "` | ", &default, " | ", &here, " | ", &meaning, " |\n"]);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap();
    assert!(written == page, "options have changed: run UPDATE_DOCS=1 cargo test -p rollscope-cli");
}
