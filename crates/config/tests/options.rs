//! One server's options, declared as servers do it: where values come from, what is refused, what is shown.

use rollscope_config::{
    Choice, ConfigError, ConfigFile, Kind, OptionSet as _, Options as _, Place, Published, Sources, options,
};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Null,
    Prefill,
    Decode,
}

impl Choice for Mode {
    const SPELLINGS: &'static [(&'static str, Self)] =
        &[("null", Self::Null), ("prefill", Self::Prefill), ("decode", Self::Decode)];
}

options! {
    /// A server that exists to be configured.
    ///
    /// It has one option of each kind.
    struct SampleOptions, environment "ROLLSCOPE_SAMPLE", check agree {
        model {
            /// Directory of the checkpoint.
            model_path: String, value_name("DIR");
        }
        serving {
            /// Address to listen on.
            host: String = "127.0.0.1";
            /// Port to listen on; 0 picks a free one.
            port: u16 = 30000;
            /// Servers to send to.
            worker_urls: Vec<String> = &[], alias("worker"), value_name("URL");
            /// Key that the administration calls must carry.
            admin_api_key: Option<String> = None, secret();
            /// Codes that are tried again.
            retry_codes: Vec<u16> = &[429, 503], range(400..=599);
        }
        schedule {
            /// Requests that run at once.
            ///
            /// More wait in the queue.
            max_running_requests: Option<u32> = None, range(1..=4096);
            /// Priority of a request that names none.
            default_priority: i64 = 0;
        }
        memory {
            /// Share of the memory that KV pages take.
            mem_fraction_static: f64 = 0.5, range(0.05..=0.95);
        }
        disagg {
            /// Which half of a pair this server is.
            disaggregation_mode: Mode = Mode::Null;
            /// Seconds that a request may wait for its peer.
            bootstrap_timeout_s: f64 = 300.0, env("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT");
            /// Prefill servers, each with its bootstrap port.
            prefill: Vec<(String, Option<u16>)> = &[], value_name("URL [PORT|none]"), ranked();
        }
        observability {
            /// Publish forward-pass metrics.
            enable_forward_pass_metrics: bool = false;
            /// Name under which they are published.
            forward_pass_metrics_worker_id: String = "", hidden();
        }
    }
}

fn agree(options: &SampleOptions) -> Result<(), ConfigError> {
    if options.disaggregation_mode == Mode::Decode && !options.prefill.is_empty() {
        return Err(ConfigError::Conflict(
            "--prefill has no use with --disaggregation-mode decode".to_owned(),
        ));
    }
    let told = [&options.host[..], options.admin_api_key.as_deref().unwrap_or_default(), &options.model_path];
    if options.host.contains('#') {
        return Err(ConfigError::Conflict(format!("no name of a host: {told:?}")));
    }
    Ok(())
}

/// Resolves arguments and `NAME=value` settings, both separated by blanks (`+` stands for a blank in a value).
fn resolve(args: &str, env: &str) -> Result<SampleOptions, ConfigError> {
    let matches = SampleOptions::command("sample")
        .no_binary_name(true)
        .try_get_matches_from(args.split_whitespace())
        .map_err(ConfigError::CommandLine)?;
    let env = |name: &str| {
        let mut settings = env.split_whitespace().filter_map(|setting| setting.split_once('='));
        settings.find(|(key, _)| *key == name).map(|(_, value)| value.replace('+', " "))
    };
    SampleOptions::resolve(&matches, &Sources { env: &env, file: None })
}

/// Resolves arguments, separated by blanks, and the text of a file.
fn resolve_file(args: &str, text: &str) -> Result<SampleOptions, ConfigError> {
    let matches =
        SampleOptions::command("sample").no_binary_name(true).get_matches_from(args.split_whitespace());
    let env = |name: &str| (name == "ROLLSCOPE_SAMPLE_HOST").then(|| "from-env".to_owned());
    SampleOptions::resolve(&matches, &Sources { env: &env, file: Some(ConfigFile::parse("f.toml", text)?) })
}

#[test]
fn a_flag_beats_the_environment_beats_the_default() {
    let cases = [
        ("", "", "port", json!(30000)),
        ("", "ROLLSCOPE_SAMPLE_PORT=1", "port", json!(1)),
        ("--port 2", "ROLLSCOPE_SAMPLE_PORT=1", "port", json!(2)),
        ("--port=3", "", "port", json!(3)),
        ("", "ROLLSCOPE_SAMPLE_PORT=", "port", json!(30000)),
        // An option's own variable beats the name that the field uses elsewhere.
        ("", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=7", "bootstrap_timeout_s", json!(7.0)),
        (
            "",
            "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=7 ROLLSCOPE_SAMPLE_BOOTSTRAP_TIMEOUT_S=8.5",
            "bootstrap_timeout_s",
            json!(8.5),
        ),
        // A flag can be given, and can be taken back from the environment.
        ("--enable-forward-pass-metrics", "", "enable_forward_pass_metrics", json!(true)),
        ("", "ROLLSCOPE_SAMPLE_ENABLE_FORWARD_PASS_METRICS=yes", "enable_forward_pass_metrics", json!(true)),
        (
            "--enable-forward-pass-metrics=false",
            "ROLLSCOPE_SAMPLE_ENABLE_FORWARD_PASS_METRICS=1",
            "enable_forward_pass_metrics",
            json!(false),
        ),
        ("", "ROLLSCOPE_SAMPLE_DISAGGREGATION_MODE=prefill", "disaggregation_mode", json!("prefill")),
        // Absent values.
        ("--max-running-requests 8", "", "max_running_requests", json!(8)),
        (
            "--max-running-requests none",
            "ROLLSCOPE_SAMPLE_MAX_RUNNING_REQUESTS=8",
            "max_running_requests",
            Value::Null,
        ),
        // Lists: several words, repeated flags, an alias; commas in the environment. A flag replaces the whole list.
        ("--worker-urls http://a http://b", "", "worker_urls", json!(["http://a", "http://b"])),
        ("--worker http://a --worker http://b", "", "worker_urls", json!(["http://a", "http://b"])),
        (
            "",
            "ROLLSCOPE_SAMPLE_WORKER_URLS=http://a,+http://b,",
            "worker_urls",
            json!(["http://a", "http://b"]),
        ),
        ("--worker c", "ROLLSCOPE_SAMPLE_WORKER_URLS=a,b", "worker_urls", json!(["c"])),
        ("--worker-urls --port 1", "ROLLSCOPE_SAMPLE_WORKER_URLS=a,b", "worker_urls", json!([])),
        // Of what is given twice the last counts.
        ("--port 1 --port 2", "", "port", json!(2)),
        (
            "--enable-forward-pass-metrics --enable-forward-pass-metrics=false",
            "",
            "enable_forward_pass_metrics",
            json!(false),
        ),
        ("", "", "retry_codes", json!([429, 503])),
        ("--retry-codes 500 502", "", "retry_codes", json!([500, 502])),
        // Pairs.
        (
            "--prefill http://a 8998 --prefill http://b NONE --prefill http://c",
            "",
            "prefill",
            json!([["http://a", 8998], ["http://b", null], ["http://c", null]]),
        ),
        (
            "",
            "ROLLSCOPE_SAMPLE_PREFILL=http://a+8998,http://b",
            "prefill",
            json!([["http://a", 8998], ["http://b", null]]),
        ),
        // Numbers.
        ("--default-priority -3", "", "default_priority", json!(-3)),
        ("--mem-fraction-static 0.25", "", "mem_fraction_static", json!(0.25)),
    ];
    for (args, env, field, expected) in cases {
        let options =
            resolve(&format!("--model-path m {args}"), env).unwrap_or_else(|e| panic!("{args} {env}: {e}"));
        assert_eq!(options.to_json()[field], expected, "{args} | {env}");
    }
}

#[test]
fn fields_are_typed() {
    let options = resolve("--model-path m --prefill http://a 1 --max-running-requests 8", "").unwrap();
    assert_eq!(
        (options.model_path.as_str(), options.port, options.max_running_requests),
        ("m", 30000, Some(8))
    );
    assert_eq!(options.prefill, [("http://a".to_owned(), Some(1))]);
    assert_eq!(options.disaggregation_mode, Mode::Null);
    assert_eq!(
        options,
        SampleOptions::from_args([
            "--model-path",
            "m",
            "--prefill",
            "http://a",
            "1",
            "--max-running-requests=8"
        ])
        .unwrap()
    );
}

#[test]
fn what_is_refused_is_named_with_what_is_allowed() {
    let cases = [
        ("", "", "missing --model-path (or environment variable ROLLSCOPE_SAMPLE_MODEL_PATH)"),
        (
            "--port 70000",
            "",
            r#"invalid value for --port: expected a whole number in 0..=65535, got "70000""#,
        ),
        ("--port x", "", r#"invalid value for --port: expected a whole number in 0..=65535, got "x""#),
        (
            "",
            "ROLLSCOPE_SAMPLE_PORT=-1",
            r#"invalid value for environment variable ROLLSCOPE_SAMPLE_PORT: expected a whole number in 0..=65535, got "-1""#,
        ),
        (
            "",
            "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=soon",
            r#"invalid value for environment variable SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT: expected a finite number, got "soon""#,
        ),
        (
            "--bootstrap-timeout-s inf",
            "",
            r#"invalid value for --bootstrap-timeout-s: expected a finite number, got "inf""#,
        ),
        (
            "--max-running-requests 0",
            "",
            r#"invalid value for --max-running-requests: expected a whole number in 1..=4096, or none, got "0""#,
        ),
        (
            "--mem-fraction-static 1",
            "",
            r#"invalid value for --mem-fraction-static: expected a number in 0.05..=0.95, got "1""#,
        ),
        (
            "--disaggregation-mode both",
            "",
            r#"invalid value for --disaggregation-mode: expected one of null, prefill, decode, got "both""#,
        ),
        (
            "--enable-forward-pass-metrics=maybe",
            "",
            r#"invalid value for --enable-forward-pass-metrics: expected true or false, got "maybe""#,
        ),
        (
            "--retry-codes 500 200",
            "",
            r#"invalid value for --retry-codes: expected any number of: a whole number in 400..=599, got "200""#,
        ),
        (
            "--prefill http://a eight",
            "",
            r#"invalid value for --prefill: expected any number of: text, then optionally a whole number in 0..=65535, or none, got "eight""#,
        ),
        (
            "",
            "ROLLSCOPE_SAMPLE_PREFILL=http://a+1+2",
            r#"invalid value for environment variable ROLLSCOPE_SAMPLE_PREFILL: expected any number of: text, then optionally a whole number in 0..=65535, or none, got "http://a 1 2""#,
        ),
        (
            "--disaggregation-mode decode --prefill http://a",
            "",
            "conflicting options: --prefill has no use with --disaggregation-mode decode",
        ),
    ];
    for (args, env, expected) in cases {
        let path = if expected.starts_with("missing") { "" } else { "--model-path m" };
        let error = resolve(&format!("{path} {args}"), env).expect_err(args);
        assert_eq!(error.to_string(), expected, "{args} | {env}");
    }
    for args in ["--prot 1", "--port", "stray"] {
        assert!(matches!(resolve(args, ""), Err(ConfigError::CommandLine(_))), "{args}");
    }
}

#[test]
fn an_override_changes_what_is_in_force_and_never_the_start() {
    let published = Published::publish(resolve("--model-path m", "").unwrap());
    let clone = published.clone();
    published.override_fields("listener.bound", [("port", json!(40123)), ("host", json!("::1"))]).unwrap();
    clone.override_fields("update", [("port", json!(40124)), ("max_running_requests", json!(3))]).unwrap();
    clone.override_fields("update", [("max_running_requests", Value::Null)]).unwrap();
    published.override_fields("nobody", []).unwrap();

    assert_eq!(published.startup(), &resolve("--model-path m", "").unwrap());
    assert_eq!(
        (published.startup_json()["port"].clone(), published.resolved_json()["port"].clone()),
        (json!(30000), json!(40124))
    );
    assert_eq!(
        (published.resolved().host.as_str(), published.resolved().max_running_requests),
        ("::1", None)
    );
    assert_eq!(
        serde_json::to_value(published.overrides()).unwrap(),
        json!([
            {"source": "listener.bound", "fields": {"host": "::1", "port": 40123}},
            {"source": "update", "fields": {"max_running_requests": 3, "port": 40124}},
            {"source": "update", "fields": {"max_running_requests": null}},
        ])
    );
}

#[test]
fn the_log_does_not_grow_by_what_is_changed_again_and_again() {
    let published = Published::publish(resolve("--model-path m", "").unwrap());
    let scope = published.override_scoped("a", [("port", json!(1))]).unwrap();
    for round in 0..100 {
        published.override_fields("a", [("port", json!(2 * round))]).unwrap();
        published.override_fields("b", [("port", json!(2 * round + 1))]).unwrap();
    }
    published.override_fields("a", [("port", json!(7)), ("host", json!("::1"))]).unwrap();
    assert_eq!(
        json!(published.overrides()),
        json!([
            {"source": "a", "fields": {"port": 1}},
            {"source": "a", "fields": {"port": 198}, "times": 100},
            {"source": "b", "fields": {"port": 199}, "times": 100},
            {"source": "a", "fields": {"host": "::1", "port": 7}},
        ])
    );
    published.override_fields("a", [("port", json!(8))]).unwrap();
    // Made anew from the log, the values are the same.
    drop(scope);
    assert_eq!((published.resolved().port, published.overrides().len()), (8, 3));
}

#[test]
fn a_files_number_that_is_none_is_no_absent_value() {
    for number in ["nan", "-nan", "inf", "-inf"] {
        let text = format!("[sample]\nmax_running_requests = {number}\n");
        assert!(
            matches!(resolve_file("--model-path m", &text), Err(ConfigError::Invalid { .. })),
            "{number}"
        );
    }
}

#[test]
fn a_refused_override_changes_nothing() {
    let published = Published::publish(resolve("--model-path m", "").unwrap());
    let cases = [
        ("prot", json!(1), "unknown option in override by test: prot"),
        (
            "port",
            json!("1"),
            r#"invalid value for port (override by test): expected a whole number in 0..=65535, got "1""#,
        ),
        (
            "port",
            json!(1.0),
            "invalid value for port (override by test): expected a whole number in 0..=65535, got 1.0",
        ),
        (
            "port",
            Value::Null,
            "invalid value for port (override by test): expected a whole number in 0..=65535, got null",
        ),
        (
            "mem_fraction_static",
            json!(2),
            "invalid value for mem_fraction_static (override by test): expected a number in 0.05..=0.95, got 2",
        ),
        (
            "disaggregation_mode",
            json!("both"),
            r#"invalid value for disaggregation_mode (override by test): expected one of null, prefill, decode, got "both""#,
        ),
        (
            "admin_api_key",
            json!(["s3cret"]),
            "invalid value for admin_api_key (override by test): expected text, got <redacted>",
        ),
        (
            "prefill",
            json!([["http://a"]]),
            "invalid value for prefill (override by test): expected any number of: \
             text, then optionally a whole number in 0..=65535, or none, got [\"http://a\"]",
        ),
    ];
    for (field, value, expected) in cases {
        let error =
            published.override_fields("test", [("host", json!("changed")), (field, value)]).expect_err(field);
        assert_eq!(error.to_string(), expected);
    }
    let contradiction = [("disaggregation_mode", json!("decode")), ("prefill", json!([["http://a", null]]))];
    assert!(matches!(published.override_fields("test", contradiction), Err(ConfigError::Conflict(_))));

    assert_eq!(published.resolved_json(), published.startup_json());
    assert_eq!(published.overrides(), []);
}

#[test]
fn a_secret_is_shown_nowhere() {
    let options = resolve("--model-path m --admin-api-key hush-1", "").unwrap();
    assert_eq!(options.admin_api_key.as_deref(), Some("hush-1"));
    let published = Published::publish(options);
    published.override_fields("rotation", [("admin_api_key", json!("hush-2"))]).unwrap();
    assert_eq!(published.resolved().admin_api_key.as_deref(), Some("hush-2"));

    let shown = format!(
        "{:?} {published:?} {} {} {}",
        published.startup(),
        json!(published.startup_json()),
        json!(published.resolved_json()),
        json!(published.overrides()),
    );
    assert!(!shown.contains("hush"), "{shown}");
    assert_eq!(published.overrides()[0].fields["admin_api_key"], json!("<redacted>"));
    // That none is set is no secret.
    assert_eq!(resolve("--model-path m", "").unwrap().to_json()["admin_api_key"], Value::Null);
}

#[test]
fn the_table_of_options_tells_all_that_help_and_documentation_need() {
    let specs = SampleOptions::specs();
    let port = specs.iter().find(|spec| spec.name == "port").unwrap();
    assert_eq!(
        (port.flag.as_str(), port.env.as_slice()),
        ("port", ["ROLLSCOPE_SAMPLE_PORT".to_owned()].as_slice())
    );
    assert_eq!(
        (port.default.clone(), port.kind.clone()),
        (Some(json!(30000)), Kind::Integer { min: 0, max: 65535 })
    );
    assert_eq!(
        (port.namespace.name(), port.help.as_str()),
        ("serving", "Port to listen on; 0 picks a free one.")
    );
    let names: Vec<_> = specs.iter().map(|spec| spec.name).collect();
    assert_eq!(names.len(), SampleOptions::from_args(["--model-path", "m"]).unwrap().to_json().len());
    assert_eq!(names[..3], ["model_path", "host", "port"]);
}

#[test]
fn help_is_grouped_by_namespace() {
    insta::assert_snapshot!("short_help", SampleOptions::command("sample").render_help());
    insta::assert_snapshot!("long_help", SampleOptions::command("sample").render_long_help());
}

#[test]
fn a_file_comes_after_flag_and_environment() {
    let text = "
        [sample]
        model_path = 'from-file'
        host = 'from-file'
        port = 1
        worker = 'http://one'
        retry-codes = [500]
        max_running_requests = 7
        mem_fraction_static = 0.25
        disaggregation_mode = 'prefill'
        prefill = [['http://a', 8998], ['http://b', 'none'], 'http://c']
        enable_forward_pass_metrics = true
        [other]
        of = 'another command'
    ";
    let options = resolve_file("--port 2", text).unwrap();
    assert_eq!(
        Value::Object(options.to_json()),
        json!({
            "model_path": "from-file",
            "host": "from-env",
            "port": 2,
            "worker_urls": ["http://one"],
            "admin_api_key": null,
            "retry_codes": [500],
            "max_running_requests": 7,
            "default_priority": 0,
            "mem_fraction_static": 0.25,
            "disaggregation_mode": "prefill",
            "bootstrap_timeout_s": 300.0,
            "prefill": [["http://a", 8998], ["http://b", null], ["http://c", null]],
            "enable_forward_pass_metrics": true,
            "forward_pass_metrics_worker_id": "",
        })
    );
    // Null has no spelling in a file, so the command line's is taken.
    let options = resolve_file("--model-path m", "[sample]\nmax_running_requests = 'none'\n").unwrap();
    assert_eq!(options.max_running_requests, None);
}

#[test]
fn a_value_is_written_as_a_file_has_it() {
    let specs = SampleOptions::specs();
    let written =
        |name: &str, value: Value| specs.iter().find(|spec| spec.name == name).unwrap().in_file(&value);
    for (name, value, expected) in [
        ("port", json!(1), Some("1")),
        ("mem_fraction_static", json!(0.25), Some("0.25")),
        ("bootstrap_timeout_s", json!(300.0), Some("300.0")),
        ("enable_forward_pass_metrics", json!(true), Some("true")),
        ("disaggregation_mode", json!("decode"), Some("\"decode\"")),
        ("max_running_requests", Value::Null, Some("\"none\"")),
        ("worker_urls", json!(["a", "b"]), Some("[\"a\", \"b\"]")),
        (
            "prefill",
            json!([["http://a", 8998], ["http://b", null]]),
            Some("[[\"http://a\", 8998], [\"http://b\"]]"),
        ),
        // There is no null, and a secret is not for a file that is shown.
        ("admin_api_key", Value::Null, None),
        ("admin_api_key", json!("<redacted>"), None),
    ] {
        assert_eq!(written(name, value.clone()).as_deref(), expected, "{name} {value}");
        if let Some(text) = expected {
            let options = resolve_file("--model-path m", &format!("[sample]\n{name} = {text}")).unwrap();
            assert_eq!(options.to_json()[name], value, "{name}");
        }
    }
}

#[test]
fn a_file_with_a_mistake_is_refused_by_its_place() {
    for (text, expected) in [
        (
            "[sample]\nport = 70000",
            "invalid value for sample.port in f.toml: expected a whole number in 0..=65535, got 70000",
        ),
        ("[sample]\nport = '1'", "got \"1\""),
        ("[sample]\nport = 1979-05-27", "got \"1979-05-27\""),
        ("[sample]\nprot = 1", "f.toml: unknown option: sample.prot (did you mean port?)"),
        ("[sample]\nsomething = 1", "f.toml: unknown option: sample.something"),
        ("[sample]\nadmin_api_key = ['secret']", "got <redacted>"),
        (
            "[sample]\nworker = []\nworker-urls = []",
            "f.toml has both worker and worker-urls in [sample], which are one option",
        ),
        ("[sample]\n\nport 1", "cannot read the configuration file f.toml: line 3: "),
        ("port = 1", "options stand in sections, such as [gateway], and port in none"),
    ] {
        let error = resolve_file("--model-path m", text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let file = ConfigFile::parse("f.toml", "[smaple]\n").unwrap();
    let error = file.refuse_unknown_sections(&["sample".to_owned(), "other".to_owned()]).unwrap_err();
    assert_eq!(error.to_string(), "f.toml: unknown section: smaple (did you mean sample?)");
    let missing = ConfigFile::read(std::path::Path::new("/nowhere/f.toml")).unwrap_err();
    assert!(
        missing.to_string().starts_with("cannot read the configuration file /nowhere/f.toml: "),
        "{missing}"
    );
}

#[test]
fn every_value_tells_where_it_comes_from() {
    let matches = SampleOptions::command("sample").get_matches_from(["sample", "--port", "2"]);
    let env = |name: &str| (name == "ROLLSCOPE_SAMPLE_ADMIN_API_KEY").then(|| "secret".to_owned());
    let file = ConfigFile::parse("f.toml", "[sample]\nhost = 'h'").unwrap();
    let origins = SampleOptions::origins(&matches, &Sources { env: &env, file: Some(file) }).unwrap();
    let of = |name: &str| {
        origins
            .iter()
            .find(|(spec, ..)| spec.name == name)
            .map(|(_, value, place)| (value.clone(), place.clone()))
    };
    let file = Place::File { path: "f.toml".to_owned(), key: "sample.host".to_owned() };
    let variable = Place::Environment("ROLLSCOPE_SAMPLE_ADMIN_API_KEY".to_owned());
    assert_eq!(of("port"), Some((Some(json!(2)), Place::Flag("--port".to_owned()))));
    assert_eq!(of("host"), Some((Some(json!("h")), file)));
    assert_eq!(of("admin_api_key"), Some((Some(json!("<redacted>")), variable)));
    assert_eq!(of("retry_codes"), Some((Some(json!([429, 503])), Place::Default("retry_codes"))));
    assert_eq!(of("model_path"), Some((None, Place::Default("model_path"))), "it must be given and is not");
}

#[test]
fn options_of_one_command_are_resolved_together() {
    options! {
        /// More of the same command.
        struct MoreOptions, environment "ROLLSCOPE_SAMPLE" {
            observability {
                /// Where to record.
                record: Option<String> = None;
            }
        }
    }
    type Both = (SampleOptions, MoreOptions);
    let matches = Both::args(clap::Command::new("sample")).get_matches_from(["sample", "--model-path", "m"]);
    let sources = |text| Sources { env: &|_| None, file: Some(ConfigFile::parse("f.toml", text).unwrap()) };
    let (sample, more) = Both::resolve(&matches, &sources("[sample]\nport = 1\nrecord = 'run'")).unwrap();
    assert_eq!((sample.port, more.record.as_deref()), (1, Some("run")));
    let error = Both::resolve(&matches, &sources("[sample]\nrecrod = 'run'")).unwrap_err();
    assert_eq!(error.to_string(), "f.toml: unknown option: sample.recrod (did you mean record?)");
}

#[test]
fn a_scoped_override_ends_with_its_scope() {
    let options = SampleOptions::from_args(["--model-path", "m"]).unwrap();
    let published = Published::publish(options);
    published.override_fields("first", [("port", 1.into())]).unwrap();
    let outer = published.override_scoped("outer", [("port", 2.into()), ("host", "outer".into())]).unwrap();
    let inner = published.override_scoped("inner", [("port", 3.into())]).unwrap();
    assert_eq!((published.resolved().port, published.resolved().host.as_str()), (3, "outer"));
    // What is made meanwhile stays, in whatever order the scopes end.
    published.override_fields("meanwhile", [("default_priority", 5.into())]).unwrap();
    drop(outer);
    assert_eq!((published.resolved().port, published.resolved().host.as_str()), (3, "127.0.0.1"));
    drop(inner);
    assert_eq!((published.resolved().port, published.resolved().default_priority), (1, 5));
    let sources: Vec<_> = published.overrides().into_iter().map(|entry| entry.source).collect();
    assert_eq!(sources, ["first", "meanwhile"]);
    // One that is refused, or changes nothing, leaves nothing to undo.
    assert!(published.override_scoped("bad", [("port", 1.into()), ("host", 1.into())]).is_err());
    drop(published.override_scoped("empty", []).unwrap());
    assert_eq!(published.overrides().len(), 2);
}

#[test]
fn an_override_that_another_needs_is_not_undone() {
    let args = ["--model-path", "m", "--disaggregation-mode", "decode"];
    let published = Published::publish(SampleOptions::from_args(args).unwrap());
    let outer = published.override_scoped("outer", [("disaggregation_mode", "prefill".into())]).unwrap();
    let inner = published.override_scoped("inner", [("prefill", json!([["http://a", null]]))]).unwrap();
    // Without the outer one it would be a decode server with a prefill server beside it.
    drop(outer);
    assert_eq!(published.resolved().disaggregation_mode, Mode::Prefill);
    assert_eq!(published.overrides().len(), 2, "what is in force is in the log");
    drop(inner);
    assert_eq!((published.overrides().len(), published.resolved().prefill.len()), (1, 0));
}

/// Somebody logs in by a URL: that is shown nowhere, and what contradicts itself is refused when it is shown.
#[test]
fn what_is_shown_has_no_password_and_is_in_force() {
    let args = ["--model-path", "http://me:pw@h/m"];
    let published = Published::publish(SampleOptions::from_args(args).unwrap());
    published.override_fields("who", [("host", "tcp://me:pw@h".into())]).unwrap();
    let shown = json!([published.startup_json(), published.resolved_json(), published.bags()]).to_string();
    let log = format!("{:?} {published:?}", published.overrides());
    for shown in [shown, log] {
        assert!(!shown.contains("pw") && shown.contains("<redacted>@h"), "{shown}");
    }
    assert_eq!(published.resolved().host, "tcp://me:pw@h");
    let origins = |args: &[&str]| {
        let matches = SampleOptions::command("sample").try_get_matches_from(args).unwrap();
        SampleOptions::origins(&matches, &Sources::none())
    };
    let origins_of_url = origins(&["sample", "--model-path", "http://me:pw@h/m"]).unwrap();
    let (spec, value, _) = origins_of_url.iter().find(|(spec, ..)| spec.name == "model_path").unwrap();
    assert_eq!(value.as_ref().unwrap(), "http://<redacted>@h/m");
    assert_eq!(spec.in_file(value.as_ref().unwrap()), None, "a file would say something else");
    let conflict =
        ["sample", "--model-path", "m", "--disaggregation-mode", "decode", "--prefill", "http://a"];
    assert!(matches!(origins(&conflict), Err(ConfigError::Conflict(_))));
}

/// A host that is a number is a user's before the @ as well; only where workers are named it may be a rank.
#[test]
fn a_contradiction_tells_no_secret() {
    let told = |host: &str, key: &str| {
        let args = ["--host", host, "--model-path", "m", "--admin-api-key", key];
        SampleOptions::from_args(args).unwrap_err().to_string()
    };
    for (host, key, shown) in [
        ("http://me:a/b#c@h", "k-e-y", "[\"http://<redacted>@h\", \"<redacted>\", \"m\"]"),
        ("http://admin:12345#@5", "key", "[\"http://<redacted>@5\", \"<redacted>\", \"m\"]"),
        ("h#", "m", "[\"h#\", \"<redacted>\", \"<redacted>\"]"),
    ] {
        assert_eq!(told(host, key), format!("conflicting options: no name of a host: {shown}"));
    }
    let published = Published::publish(SampleOptions::from_args(["--model-path", "m"]).unwrap());
    let overridden = published.override_fields("who", [("host", "http://me:a/b#c@h".into())]);
    let error = overridden.unwrap_err().to_string();
    assert!(error.contains("http://<redacted>@h") && !error.contains("a/b"), "{error}");
    let args = ["--model-path", "http://admin:12345@5", "--prefill", "http://h:1@5"];
    let shown = SampleOptions::from_args(args).unwrap().to_json();
    assert_eq!(
        (&shown["model_path"], &shown["prefill"]),
        (&json!("http://<redacted>@5"), &json!([["http://h:1@5", null]]))
    );
}

#[test]
fn a_namespace_is_a_bag_of_its_own() {
    let published = Published::publish(SampleOptions::from_args(["--model-path", "m"]).unwrap());
    published.override_fields("who", [("bootstrap_timeout_s", 1.5.into())]).unwrap();
    assert_eq!(
        published.bags()["disagg"],
        json!({"disaggregation_mode": "null", "bootstrap_timeout_s": 1.5, "prefill": []})
    );
    // Each is also there with its types.
    let (disagg, serving) = (published.disagg(), published.serving());
    assert_eq!((disagg.disaggregation_mode, disagg.bootstrap_timeout_s), (Mode::Null, 1.5));
    assert_eq!(serving.host, published.startup().host);
    published.override_fields("who", [("admin_api_key", "key".into())]).unwrap();
    assert_eq!(serving.admin_api_key, None, "a bag is of its moment");
    let shown = format!("{:?}", published.serving());
    assert!(shown.contains("\"admin_api_key\": String(\"<redacted>\")"), "{shown}");
    let bags = published.bags();
    assert_eq!(bags["disagg"]["bootstrap_timeout_s"], 1.5);
    let options: usize = bags.values().map(|bag| bag.as_object().unwrap().len()).sum();
    assert_eq!(options, SampleOptions::specs().len());
}
