//! One server's options, declared as servers do it: where values come from, what is refused, what is shown.

use rollscope_config::{Choice, ConfigError, Kind, Options as _, Published, options};
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
            prefill: Vec<(String, Option<u16>)> = &[], value_name("URL [PORT|none]");
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
    Ok(())
}

/// Resolves arguments and `NAME=value` settings, both separated by blanks (`+` stands for a blank in a value).
fn resolve(args: &str, env: &str) -> Result<SampleOptions, ConfigError> {
    let matches = SampleOptions::command("sample")
        .no_binary_name(true)
        .try_get_matches_from(args.split_whitespace())
        .map_err(ConfigError::CommandLine)?;
    SampleOptions::resolve(&matches, &|name| {
        let mut settings = env.split_whitespace().filter_map(|setting| setting.split_once('='));
        settings.find(|(key, _)| *key == name).map(|(_, value)| value.replace('+', " "))
    })
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
        ("", "", "retry_codes", json!([429, 503])),
        ("--retry-codes 500 502", "", "retry_codes", json!([500, 502])),
        // Pairs.
        (
            "--prefill http://a 8998 --prefill http://b none --prefill http://c",
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
    for args in ["--prot 1", "--port", "stray", "--port 1 --port 2"] {
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
