//! The viewer over real runs and sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod make;
mod viewer;

use rollscope_run::Run;
use rollscope_stats::step_numbers;
use rollscope_trace::{Attr, CloseReason, Outcome, Record, StepClose, StepNumber, StepTrace, UnixNs};
use rollscope_view::{Given, Served, Shown, Token, export_html, glance};
use serde_json::{Value, json};

use make::{call, mark, pass, run, span};
use viewer::{Reply, Viewer};

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'\u{202e}\0";

fn close(step: u64) -> Record {
    let step = StepNumber(step);
    Record::Close(StepClose {
        step,
        at: UnixNs(0),
        reason: CloseReason::Told,
        rollout_time: None,
        gpus: None,
    })
}

#[tokio::test]
async fn a_run_is_answered_for_by_step() {
    let (_dir, run, mut writer) = run();
    for record in
        [call(1, "a", 1), call(1, "b", 2), span(1, "a", vec![]), mark(1, "a", 1.0), close(1), call(2, "a", 3)]
    {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    let viewer = Viewer::start(run).await;

    let about = viewer.json("/api/run").await;
    assert_eq!(about["producer"], "a test");
    assert_eq!(about["writers"], json!([{"name": "gateway", "state": "live"}]));

    let steps = viewer.json("/api/steps").await;
    assert_eq!(
        steps["steps"],
        json!([
            {"step": 1, "version": 5, "closed": "told", "requests": 2, "samples": 2, "user_spans": 1, "passes": 0, "metrics": null},
            {"step": 2, "version": 1, "closed": null, "requests": 1, "samples": 1, "user_spans": 0, "passes": 0, "metrics": null},
        ])
    );
    assert_eq!(steps["dropped"], json!({"profiles": 0, "user_records": 0}));

    let numbers = viewer.json("/api/steps/1").await;
    assert_eq!(numbers["metrics"]["perf/request/count"], json!(2.0));
    assert_eq!(numbers["metrics"]["rollout/reward/mean"], json!(1.0));
    // 20 and 40 ms of generation, of requests of 25 and 45.
    assert_eq!(numbers["sentence"], "where the time went: 86% decode forward, 14% gateway");
    let series = numbers["series"].as_array().unwrap();
    let forward = series.iter().find(|row| row["name"] == "decode/forward_duration").unwrap();
    assert_eq!(
        (&forward["unit"], &forward["count"], &forward["max"]),
        (&json!("s"), &json!(2), &json!(0.04))
    );
    assert_eq!(numbers["slowest"]["sample"], "g/b");

    for path in ["/api/steps/1/table", "/api/steps/1/tiles/0", "/api/steps/1/workers/0"] {
        let reply = viewer.get(path).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/octet-stream")));
        assert!(reply.body.starts_with(b"RSC1"), "{path}");
    }
    assert_eq!(viewer.json("/api/steps/1/samples/1").await["sample"], "b");
    assert_eq!(viewer.json("/api/steps/1/search?text=G%2FB").await["rows"], json!([1]));
    writer.end().unwrap();
    assert_eq!(viewer.json("/api/run").await["writers"][0]["state"], "ended");
    viewer.stop().await;
}

#[tokio::test]
async fn what_is_written_later_is_seen() {
    let (_dir, run, mut writer) = run();
    let viewer = Viewer::start(run).await;
    assert_eq!(viewer.json("/api/steps").await["steps"], json!([]));
    assert_eq!(viewer.get("/api/steps/1").await.status, 404);
    for id in 1..=3 {
        writer.append(&call(1, "a", id)).unwrap();
        writer.flush().unwrap();
        assert_eq!(viewer.json("/api/steps").await["steps"][0]["version"], json!(id));
        let numbers = viewer.json("/api/steps/1").await;
        assert_eq!(numbers["metrics"]["perf/request/count"], json!(id as f64));
        assert_eq!(numbers["closed"], json!(null));
    }
    writer.append(&close(1)).unwrap();
    writer.flush().unwrap();
    assert_eq!(viewer.json("/api/steps/1").await["closed"], "told");
    viewer.stop().await;
}

#[tokio::test]
async fn the_page_is_whole_and_keeps_to_itself() {
    let (_dir, run, _writer) = run();
    let viewer = Viewer::start(run).await;
    let page = viewer.get("/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");

    let text = std::str::from_utf8(&page.body).unwrap();
    // What its attributes refer to.
    let is_file = |part: &&str| part.contains('.') && !part.contains(char::is_whitespace);
    let is_asked = |part: &&str| is_file(part) || part.starts_with("api/");
    let files: Vec<_> = text.split('"').filter(is_asked).collect();
    for file in ["style.css", "page.js", "api/run", "api/steps"] {
        assert!(files.contains(&file), "{file} of {files:?}");
    }
    for file in files {
        let reply = viewer.get(&format!("/{file}")).await;
        assert_eq!(reply.status, 200, "{file}");
        assert!(!reply.body.is_empty(), "{file}");
    }
    for path in ["/", "/page.js", "/api/run", "/api/steps/99", "/nothing"] {
        let reply = viewer.get(path).await;
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("content-security-policy"), Some(policy), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
    }
    viewer.stop().await;
}

#[tokio::test]
async fn nothing_else_is_served() {
    let (_dir, run, _writer) = run();
    let viewer = Viewer::start(run).await;
    for path in [
        "/run.json",
        "/log/gateway/000001.seg",
        "/../Cargo.toml",
        "/%2e%2e/%2e%2e/Cargo.toml",
        "/package.json",
        "/page/index.html",
        "/api",
        "/api/",
        "/api/steps/",
        "/api/steps/-1",
        "/api/steps/x/samples",
        "/api/steps/18446744073709551616",
        "/api/steps/1/samples/2",
        "/api/steps/1/samples/-1",
        "/api/steps/1/tiles/0/1",
        "/api/steps/1/workers/0",
    ] {
        assert_eq!(viewer.get(path).await.status, 404, "{path}");
    }
    let missing = viewer.get("/api/steps/7").await;
    assert_eq!(serde_json::from_slice::<Value>(&missing.body).unwrap()["error"], "the run has no step 7");
    let post = viewer.send("POST /api/steps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n").await;
    assert_eq!(post.status, 405);
    viewer.stop().await;
}

#[tokio::test]
async fn only_this_machine_is_answered() {
    let (_dir, run, _writer) = run();
    let viewer = Viewer::start(run).await;
    for (host, status) in
        [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:8", 200), ("evil.example", 403), ("", 403)]
    {
        let reply = viewer.send(&format!("GET /api/run HTTP/1.1\r\nHost: {host}\r\n")).await;
        assert_eq!(reply.status, status, "{host:?}");
    }
    viewer.stop().await;
}

#[tokio::test]
async fn who_has_no_token_is_not_answered() {
    let (_dir, run, _writer) = run();
    let token = Token::new(0x0707_0707);
    let viewer =
        Viewer::start_with(Served { run: run.into(), against: None, token: Some(token.clone()) }).await;
    for path in [
        "/",
        "/main.js",
        "/api/run",
        "/?token=",
        "/?token=0707",
        "/api/run?token=00000000000000000000000007070708",
    ] {
        assert_eq!(viewer.get(path).await.status, 401, "{path}");
    }
    let first = viewer.get(&format!("/?token={}", token.as_str())).await;
    assert_eq!((first.status, first.header("location")), (303, Some("/")));
    let cookie = first.header("set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
        "a link of another site works: {cookie}"
    );
    let cookie = cookie.split(';').next().unwrap();
    for path in ["/", "/page.js", "/api/run"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: other=1; {cookie}\r\n");
        assert_eq!(viewer.send(&head).await.status, 200, "{path}");
    }
    assert_eq!(viewer.get(&format!("/api/run?token={}", token.as_str())).await.status, 200, "a script's way");
    viewer.stop().await;
}

#[tokio::test]
async fn a_sealed_step_is_listed_without_its_records_and_followed() {
    let (_dir, run, mut writer) = run();
    for record in [call(1, "a", 1), call(1, "b", 2), close(1)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    run.sealer(writer.name()).seal(writer.position()).unwrap();
    let viewer = Viewer::start(run).await;
    let step = viewer.json("/api/steps").await["steps"][0].clone();
    let counts = |step: &Value| (step["version"].clone(), step["requests"].clone(), step["samples"].clone());
    assert_eq!(counts(&step), (json!(1), json!(2), json!(2)));
    // More of a sample that is known, and one that is new.
    for record in [call(1, "b", 3), call(1, "c", 4)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    let step = viewer.json("/api/steps").await["steps"][0].clone();
    assert_eq!(counts(&step), (json!(3), json!(4), json!(3)));
    assert_eq!(viewer.json("/api/steps/1").await["metrics"]["perf/request/count"], json!(4.0));
    viewer.stop().await;
}

#[tokio::test]
async fn forward_passes_stand_with_their_workers() {
    let (_dir, run, mut writer) = run();
    for record in [call(1, "a", 1), pass(1, 2, 12), pass(1, 1, 6), pass(2, 3, 9), pass(2, 4, 90)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    let viewer = Viewer::start(run).await;
    let reply = viewer.get("/api/steps/1/passes").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/octet-stream")));
    let length = u32::from_le_bytes(reply.body[4..8].try_into().unwrap()) as usize;
    let head: Value = serde_json::from_slice(&reply.body[8..8 + length]).unwrap();
    let peaks = json!([{"worker": 0, "requests": 3.0, "kv_tokens": 900.0}]);
    assert_eq!(head["meta"], json!({"left_out": 0, "unplaced": 0, "peaks": peaks}));
    let entry = viewer.json("/api/steps").await["steps"][0].clone();
    assert_eq!((&entry["version"], &entry["passes"]), (&json!(1), &json!(2)), "they change no version");
    let ends = head["columns"]["end_ns"][1].as_u64().unwrap() as usize + 8 + length;
    let end =
        |at: usize| f64::from_le_bytes(reply.body[ends + at * 8..ends + at * 8 + 8].try_into().unwrap());
    assert_eq!(head["columns"]["end_ns"][2], json!(2), "those of the step");
    let of_sample = viewer.json("/api/steps/1/samples/0/passes").await;
    let call = &of_sample[0];
    assert_eq!(
        (&call["part"], &call["role"], &call["is_exact"]),
        (&json!(1), &json!("decode"), &json!(false))
    );
    // One of them stands with the next step, of which a request was under way.
    assert_eq!((&call["count"], &call["mean_batch"]), (&json!(3), &json!(3.0)), "{call}");
    assert_eq!(viewer.get("/api/steps/1/samples/7/passes").await.status, 404);
    assert_eq!([end(0) as i64, end(1) as i64], [6_000_000, 12_000_000], "in order of time");
    viewer.stop().await;
}

#[tokio::test]
async fn forward_passes_stand_with_ranks_that_are_workers_of_their_own() {
    let (_dir, run, mut writer) = run();
    let mut called = call(1, "a", 1);
    let Record::Profile(profile) = &mut called else { unreachable!("a call is a request") };
    profile.legs[0].worker.url = format!("{}@0", profile.legs[0].worker.url).into();
    for record in [called, pass(1, 1, 6)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    let viewer = Viewer::start(run).await;
    let body = viewer.get("/api/steps/1/passes").await.body;
    let length = u32::from_le_bytes(body[4..8].try_into().unwrap()) as usize;
    let head: Value = serde_json::from_slice(&body[8..8 + length]).unwrap();
    assert_eq!(head["meta"]["unplaced"], json!(0), "{head}");
    assert_eq!(viewer.json("/api/steps/1/samples/0/passes").await[0]["count"], json!(1));
    viewer.stop().await;
}

#[tokio::test]
async fn hostile_texts_stay_texts() {
    let (_dir, run, mut writer) = run();
    let attrs = vec![(HOSTILE.into(), Attr::Text(HOSTILE.into())), ("nan".into(), Attr::Float(f64::NAN))];
    for record in [call(1, HOSTILE, 1), span(1, HOSTILE, attrs), mark(1, HOSTILE, f64::INFINITY)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    let viewer = Viewer::start(run).await;
    let details = viewer.json("/api/steps/1/samples/0").await;
    assert_eq!(details["sample"], json!(HOSTILE));
    assert_eq!(details["mark"], json!([["reward", null]]));
    assert_eq!(details["parts"][1][0]["attrs"][1], json!([HOSTILE, HOSTILE]));
    let numbers = viewer.json("/api/steps/1").await;
    assert_eq!(numbers["metrics"]["perf/anomaly/not_finite"], json!(1.0));
    assert_eq!(numbers["slowest"]["sample"], format!("g/{HOSTILE}"));
    viewer.stop().await;
}

#[tokio::test]
async fn a_run_that_cannot_be_read_any_more_is_said_so() {
    let (dir, run, writer) = run();
    writer.end().unwrap();
    let viewer = Viewer::start(run).await;
    assert_eq!(viewer.get("/api/steps").await.status, 200);
    let log = dir.path().join("run/log");
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, "no folder").unwrap();
    let Reply { status, body, .. } = viewer.get("/api/steps").await;
    let error = serde_json::from_slice::<Value>(&body).unwrap()["error"].as_str().unwrap().to_owned();
    assert_eq!(status, 500);
    assert!(error.contains("run/log"), "{error}");
    // The page itself stays.
    assert_eq!(viewer.get("/").await.status, 200);
    viewer.stop().await;
}

#[tokio::test]
async fn half_a_request_does_not_hold_up_the_end() {
    let (_dir, run, _writer) = run();
    let viewer = Viewer::start(run).await;
    let half = viewer.half_a_head().await;
    viewer.stop().await;
    drop(half);
}

/// Keeps of a sealed step what is made of a trace.
fn put_glance(run: &Run, trace: StepTrace) {
    let (step, numbers) = (trace.step, step_numbers(&trace));
    run.put_glance(step, run.sealed_state(step).unwrap(), glance(trace, numbers).unwrap()).unwrap();
}

#[tokio::test]
async fn a_run_in_which_all_failed_is_shown() {
    let (_dir, run, mut writer) = run();
    for (sample, id) in [("a", 1), ("b", 2)] {
        let Record::Profile(mut profile) = call(1, sample, id) else { unreachable!() };
        (profile.outcome, profile.status) = (Outcome::Failed, Some(503));
        profile.error = Some("no worker".into());
        profile.legs.clear();
        writer.append(&Record::Profile(profile)).unwrap();
    }
    writer.append(&close(1)).unwrap();
    writer.flush().unwrap();
    run.sealer(writer.name()).seal(writer.position()).unwrap();
    let step = StepNumber(1);
    put_glance(&run, run.step(step).unwrap());
    let viewer = Viewer::start(run).await;
    let numbers = viewer.json("/api/steps/1").await;
    assert_eq!(numbers["metrics"]["perf/request/failed"], json!(2.0));
    assert_eq!((&numbers["series"], &numbers["findings"][0]["check"]), (&json!([]), &json!("all_failed")));
    for path in ["/api/steps/1/table", "/api/steps/1/tiles/0"] {
        let reply = viewer.get(path).await;
        assert!(reply.status == 200 && reply.body.starts_with(b"RSC1"), "{path}");
    }
    assert_eq!(viewer.json("/api/steps/1/samples/1").await["sample"], "b");
}

#[tokio::test]
async fn a_step_is_shown_from_what_was_made_when_it_was_sealed_until_it_grows() {
    let (_dir, run, mut writer) = run();
    for record in [call(1, "a", 1), call(1, "b", 2), close(1)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    run.sealer(writer.name()).seal(writer.position()).unwrap();
    let step = StepNumber(1);
    // Made of less than was sealed, to be told from what is read.
    let mut less = run.step(step).unwrap();
    less.samples.truncate(1);
    put_glance(&run, less);
    let viewer = Viewer::start(run).await;
    let count = async || viewer.json("/api/steps/1").await["metrics"]["perf/request/count"].clone();
    assert_eq!(count().await, json!(1.0), "as it was made");
    for path in ["/api/steps/1/table", "/api/steps/1/tiles/0?from=0&to=1&pixel=1"] {
        assert!(viewer.get(path).await.body.starts_with(b"RSC1"), "{path}");
    }
    assert_eq!(viewer.json("/api/steps/1/samples/1").await["sample"], "b", "what was not made is read");
    writer.append(&call(1, "c", 3)).unwrap();
    writer.flush().unwrap();
    assert_eq!(count().await, json!(3.0), "read, since it has grown");
    viewer.stop().await;
}

#[tokio::test]
async fn a_viewer_that_was_open_before_shows_what_was_made_when_the_step_was_sealed() {
    let (_dir, run, mut writer) = run();
    let viewer = Viewer::start(run.clone()).await;
    let count = async || viewer.json("/api/steps/1").await["metrics"]["perf/request/count"].clone();
    let step = StepNumber(1);
    // Of a step that is new, and of one that has grown.
    for (calls, last) in [([1, 2], close(1)), ([3, 4], mark(1, "s1", 1.0))] {
        for record in calls.map(|id| call(1, &format!("s{id}"), id)).into_iter().chain([last]) {
            writer.append(&record).unwrap();
        }
        writer.flush().unwrap();
        let all = json!(calls[1] as f64);
        assert_eq!(count().await, all, "read while it is open");
        run.sealer(writer.name()).seal(writer.position()).unwrap();
        assert_eq!(count().await, all, "nothing was made yet");
        // Of another step, which goes on.
        writer.append(&call(2, "a", 9)).unwrap();
        writer.flush().unwrap();
        let mut less = run.step(step).unwrap();
        less.samples.truncate(1);
        put_glance(&run, less);
        assert_eq!(count().await, json!(1.0), "as it was made");
    }
    viewer.stop().await;
}

#[tokio::test]
async fn another_run_is_answered_for_beside_it() {
    let (_dir, first, mut of_first) = run();
    let (_other_dir, second, mut of_second) = run();
    of_first.append(&call(1, "a", 1)).unwrap();
    of_second.append(&call(7, "b", 1)).unwrap();
    of_first.flush().unwrap();
    of_second.flush().unwrap();
    let viewer =
        Viewer::start_with(Served { run: first.into(), against: Some(second.into()), token: None }).await;
    assert_eq!(viewer.json("/api/run").await["against"], json!(true));
    assert_eq!(viewer.json("/api/steps").await["steps"][0]["step"], json!(1));
    assert_eq!(viewer.json("/against/api/steps").await["steps"][0]["step"], json!(7));
    assert_eq!(viewer.json("/against/api/steps/7").await["slowest"]["sample"], "g/b");
    for path in ["/against/", "/against/main.js", "/against/api/steps/1", "/against/against/api/run"] {
        assert_eq!(viewer.get(path).await.status, 404, "{path}");
    }
    viewer.stop().await;
}

#[tokio::test]
async fn a_page_in_one_file_holds_all_that_is_asked_for() {
    let (_dir, run, mut writer) = run();
    for record in [call(1, "a", 1), call(1, HOSTILE, 2), pass(1, 1, 6), close(1), call(2, "a", 3)] {
        writer.append(&record).unwrap();
    }
    writer.flush().unwrap();
    let mut file = Vec::new();
    export_html(run, &[StepNumber(1)], &mut file).await.unwrap();
    let file = String::from_utf8(file).unwrap();
    let (_, data) = file.rsplit_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let answers: serde_json::Map<String, Value> = serde_json::from_str(data).unwrap();
    let paths: Vec<_> = answers.keys().map(|path| path.strip_prefix("api/").unwrap()).collect();
    assert_eq!(
        paths,
        [
            "run",
            "steps",
            "steps/1",
            "steps/1/passes",
            "steps/1/samples/0",
            "steps/1/samples/1",
            "steps/1/table",
            "steps/1/tiles/0",
            "steps/1/workers/0",
        ]
    );
    assert_eq!(answers["api/steps"]["steps"].as_array().unwrap().len(), 1, "the step that was asked for");
    assert_eq!(answers["api/steps/1/samples/0"]["sample"], json!(HOSTILE));
}

#[tokio::test]
async fn a_step_that_is_read_from_elsewhere_is_shown_as_far_as_it_was_read() {
    let (_dir, run, _writer) = run();
    let given = Given::reading();
    given.put(StepTrace::gather(StepNumber(4), [call(4, "a", 1)]));
    let shown = Shown { run, given: given.clone() };
    let viewer = Viewer::start_with(Served { run: shown, against: None, token: None }).await;
    let answer = viewer.json("/api/steps").await;
    let version = answer["steps"][0]["version"].as_u64().unwrap();
    assert_eq!((&answer["steps"][0]["samples"], &answer["reading"]), (&json!(1), &json!(true)));
    assert_eq!(viewer.get("/api/steps/4/tiles/0").await.status, 200);
    assert_eq!(viewer.get("/api/steps/4/samples/1").await.status, 404);

    given.put(StepTrace::gather(StepNumber(4), [call(4, "a", 1), span(4, "b", vec![]), close(4)]));
    given.end(Some("The file ends early.".into()));
    let answer = viewer.json("/api/steps").await;
    assert_eq!((&answer["reading"], &answer["damage"]), (&json!(false), &json!(["The file ends early."])));
    assert_eq!(
        answer["steps"],
        json!([{
            "step": 4, "version": version + 1, "closed": "told", "requests": 1, "samples": 2, "user_spans": 1,
            "passes": 0, "metrics": null,
        }])
    );
    assert_eq!(viewer.json("/api/steps/4").await["metrics"]["perf/request/count"], json!(1.0));
    assert_eq!(viewer.json("/api/steps/4/samples/1").await["sample"], "b");
    assert_eq!(viewer.get("/api/steps/4/passes").await.status, 200);
    viewer.stop().await;
}
