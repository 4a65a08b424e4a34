//! MLflow's REST interface: an experiment `rollscope`, a run of it for each run of ours, found again by a tag.
//!
//! The numbers of a step go in batches of at most 1,000, the step's own number last: a step whose number is there is
//! there whole. Of a step of several batches, or of one that is refused and sent in parts, those numbers are left out that
//! came through when it was sent before. A step whose numbers have changed is sent once more: MLflow keeps both, and takes the one
//! with the later time for the latest. A run that is gone on with is running again. Characters that MLflow does not take
//! in a name become `_`.
//!
//! `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`, or `MLFLOW_TRACKING_TOKEN`, are taken from the environment
//! as MLflow's own client does; else a user and a password from the URL.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rollscope_config::without_user_info;
use serde_json::{Value, json};
use ureq::Agent;

use crate::STEP_NAME;
use crate::error::TrackError;
use crate::tracker::{Numbers, Origin, Times, now_s};

#[derive(Debug)]
pub(crate) struct Mlflow {
    pub(crate) times: Times,
    server: Server,
    experiment: String,
    run: String,
    /// Of what was sent last; milliseconds. Numbers of one time are told apart by their size alone.
    sent_ms: u64,
}

#[derive(Debug)]
struct Server {
    agent: Agent,
    url: String,
    authorization: Option<String>,
}

const EXPERIMENT: &str = "rollscope";
/// The tag by which a run is found again.
const TAG: &str = "rollscope.run";
/// More numbers are not taken at once.
const MOST_IN_BATCH: usize = 1_000;
/// With more of a step's numbers refused one by one it is not they that are at fault.
const MOST_REFUSED: usize = 16;
/// A name that is longer is not taken; characters.
const MOST_IN_NAME: usize = 250;
/// A call that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Of a refusal this much is told; characters.
const TOLD: usize = 300;

// === impl Mlflow ===

impl Mlflow {
    pub(crate) fn open(origin: &Origin, url: &str) -> Result<Self, TrackError> {
        let config = Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let server =
            Server { agent: config.build().into(), url: url.to_owned(), authorization: authorization() };
        let experiment = server.experiment()?;
        let id = origin.id("mlflow");
        let found = server.post(
            "runs/search",
            &json!({
                "experiment_ids": [experiment], "filter": format!("tags.`{TAG}` = '{id}'"), "max_results": 1
            }),
        )?;
        let (run, times) = match found["runs"][0]["info"]["run_id"].as_str() {
            Some(run) => {
                let body = json!({"run_id": run, "status": "RUNNING"});
                server.post("runs/update", &body)?;
                (run.to_owned(), server.times(run)?)
            }
            None => (server.create_run(origin, &experiment, &id)?, Times::default()),
        };
        Ok(Self { times, server, experiment, run, sent_ms: 0 })
    }

    pub(crate) fn send(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackError> {
        let timestamp = ((now_s() * 1e3) as u64).max(self.sent_ms + 1);
        self.sent_ms = timestamp;
        let is_again = self.times.of(step) > 0;
        let metric = |(name, value): (&str, f64)| json!({"key": usable(name), "value": value, "timestamp": timestamp, "step": step});
        let named = numbers.iter().map(|(name, value)| (name.as_str(), *value));
        let mut metrics: Vec<Value> = named.chain([(STEP_NAME, step as f64)]).map(metric).collect();
        if metrics.len() > MOST_IN_BATCH && !is_again {
            self.server.retain_missing(&mut metrics, &self.run, step)?;
        }
        let mut refused = Vec::new();
        for batch in metrics.chunks(MOST_IN_BATCH) {
            self.log(step, batch, is_again, &mut refused)?;
        }
        self.times.add(step);
        match refused.first() {
            Some(first) => Err(TrackError::LeftOut { step, count: refused.len(), first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Sends a batch. Of one that is refused for what is in it the parts by themselves, without those numbers that came
    /// through when it was sent in parts before.
    fn log(
        &self,
        step: u64,
        batch: &[Value],
        is_again: bool,
        refused: &mut Vec<String>,
    ) -> Result<(), TrackError> {
        let sent = self.server.log(&self.run, batch);
        if !is_for_content(&sent) {
            return sent;
        }
        let mut missing = batch.to_vec();
        if !is_again {
            self.server.retain_missing(&mut missing, &self.run, step)?;
        }
        self.log_parts(&missing, sent, refused)
    }

    /// Of numbers that were refused for one of them sends each half by itself, down to the number that is at fault, which
    /// is left out: one text of a user's must not keep all that follows away. The step's own number, which comes last, is
    /// not: without it the step is not there.
    fn log_parts(
        &self,
        batch: &[Value],
        sent: Result<(), TrackError>,
        refused: &mut Vec<String>,
    ) -> Result<(), TrackError> {
        if !is_for_content(&sent) {
            return sent;
        }
        match batch {
            [] => {}
            [number] => match number["key"].as_str() {
                Some(name) if name != STEP_NAME && refused.len() < MOST_REFUSED => {
                    refused.push(name.to_owned());
                }
                _ => return sent,
            },
            several => {
                let (first, second) = several.split_at(several.len() / 2);
                for half in [first, second] {
                    self.log_parts(half, self.server.log(&self.run, half), refused)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<(), TrackError> {
        let body = json!({"run_id": self.run, "status": "FINISHED", "end_time": (now_s() * 1e3) as u64});
        self.server.post("runs/update", &body).map(drop)
    }

    pub(crate) fn place(&self) -> String {
        let server = without_user_info(&self.server.url);
        format!("{server}/#/experiments/{}/runs/{}", self.experiment, self.run)
    }
}

/// Whether a batch was refused, and for what is in it.
fn is_for_content(sent: &Result<(), TrackError>) -> bool {
    matches!(sent, Err(TrackError::Refused { status: 400, .. }))
}

/// A name that MLflow takes: of these characters, not too long, and as a path the same when it is normalized.
fn usable(name: &str) -> String {
    let taken = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ' | ':' | '/');
    let name: String = name.chars().take(MOST_IN_NAME).map(|c| if taken(c) { c } else { '_' }).collect();
    let parts = name.split('/').map(|part| if matches!(part, "" | "." | "..") { "_" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

fn authorization() -> Option<String> {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(user) = get("MLFLOW_TRACKING_USERNAME") {
        let password = get("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
        return Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))));
    }
    get("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"))
}

// === impl Server ===

impl Server {
    fn experiment(&self) -> Result<String, TrackError> {
        let path = format!("experiments/get-by-name?experiment_name={EXPERIMENT}");
        let found = match self.get(&path) {
            Err(TrackError::Refused { status: 404, .. }) => {
                match self.post("experiments/create", &json!({"name": EXPERIMENT})) {
                    // Another was faster.
                    Err(TrackError::Refused { status: 400, .. }) => self.get(&path)?,
                    made => made?,
                }
            }
            found => found?,
        };
        let id = found["experiment_id"].as_str().or_else(|| found["experiment"]["experiment_id"].as_str());
        id.map(str::to_owned).ok_or_else(|| self.unexpected(&path))
    }

    fn create_run(&self, origin: &Origin, experiment: &str, id: &str) -> Result<String, TrackError> {
        let made = self.post(
            "runs/create",
            &json!({
                "experiment_id": experiment, "run_name": origin.name(),
                "start_time": origin.created.as_millis() as u64, "tags": [{"key": TAG, "value": id}]
            }),
        )?;
        let run = made["run"]["info"]["run_id"].as_str();
        run.map(str::to_owned).ok_or_else(|| self.unexpected("runs/create"))
    }

    /// How often each step is there whole.
    fn times(&self, run: &str) -> Result<Times, TrackError> {
        let (mut times, mut token) = (Times::default(), String::new());
        loop {
            let mut path =
                format!("metrics/get-history?run_id={run}&metric_key={STEP_NAME}&max_results=1000");
            if !token.is_empty() {
                path = format!("{path}&page_token={token}");
            }
            let page = self.get(&path)?;
            for step in page["metrics"].as_array().into_iter().flatten().filter_map(step_of) {
                times.add(step);
            }
            match page["next_page_token"].as_str() {
                Some(next) if !next.is_empty() => next.clone_into(&mut token),
                _ => return Ok(times),
            }
        }
    }

    fn log(&self, run: &str, metrics: &[Value]) -> Result<(), TrackError> {
        self.post("runs/log-batch", &json!({"run_id": run, "metrics": metrics})).map(drop)
    }

    /// Leaves those numbers of a step that are not there: of each name it is told the latest one.
    fn retain_missing(&self, metrics: &mut Vec<Value>, run: &str, step: u64) -> Result<(), TrackError> {
        let found = self.get(&format!("runs/get?run_id={run}"))?;
        let latest = found["run"]["data"]["metrics"].as_array().into_iter().flatten();
        let of_step = latest.filter(|metric| step_of(metric) == Some(step));
        let there: BTreeSet<&str> = of_step.filter_map(|metric| metric["key"].as_str()).collect();
        metrics.retain(|metric| metric["key"].as_str().is_none_or(|key| !there.contains(key)));
        Ok(())
    }

    fn get(&self, path: &str) -> Result<Value, TrackError> {
        let url = self.full(path);
        let mut request = self.agent.get(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        answer(&url, request.call())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, TrackError> {
        let url = self.full(path);
        let mut request = self.agent.post(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        answer(&url, request.send_json(body))
    }

    fn full(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.url)
    }

    fn unexpected(&self, path: &str) -> TrackError {
        TrackError::Refused {
            url: without_user_info(&self.full(path)).into_owned(),
            status: 200,
            answer: "not what MLflow answers".to_owned(),
        }
    }
}

/// The step of a number; protobuf's JSON writes it as a text.
fn step_of(metric: &Value) -> Option<u64> {
    match &metric["step"] {
        Value::String(step) => step.parse().ok(),
        step => step.as_u64(),
    }
}

fn answer(
    url: &str,
    reply: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Value, TrackError> {
    let url = without_user_info(url);
    let unreachable = |source| TrackError::Unreachable { url: url.to_string(), source: Box::new(source) };
    let mut reply = reply.map_err(unreachable)?;
    let text = reply.body_mut().read_to_string().map_err(unreachable)?;
    let status = reply.status();
    let refused = |text: &str| TrackError::Refused {
        url: url.to_string(),
        status: status.as_u16(),
        answer: text.chars().take(TOLD).collect(),
    };
    if !status.is_success() {
        return Err(refused(&text));
    }
    serde_json::from_str(&text).map_err(|_| refused(&text))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    /// A server that refuses a batch with a name that holds `refused`, breaks the connection on the first one that it
    /// would take with a name that holds `breaks`, and tells the names of each that it takes.
    fn server() -> (String, Receiver<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (taken, names) = sync_channel(64);
        std::thread::spawn(move || {
            let (mut there, mut has_broken) = (Vec::new(), false);
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut line, mut length) = (String::new(), 0);
                while stream.read_line(&mut line).unwrap() > 2 {
                    if let Some(told) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = told.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                let (mut status, mut reply) = ("200 OK", json!({}));
                // Without a body it is asked what is there.
                if let Ok(batch) = serde_json::from_slice::<Value>(&body) {
                    let metrics = batch["metrics"].as_array().unwrap();
                    let name = |of: &Value| of["key"].as_str().unwrap().to_owned();
                    let names: Vec<String> = metrics.iter().map(name).collect();
                    let has = |text: &str| names.iter().any(|name| name.contains(text));
                    if has("refused") {
                        status = "400 Bad Request";
                    } else if has("breaks") && !std::mem::replace(&mut has_broken, true) {
                        continue;
                    } else {
                        there.extend_from_slice(metrics);
                        // Before the answer, so that whoever has that finds them.
                        if taken.send(names).is_err() {
                            return;
                        }
                    }
                } else {
                    reply = json!({"run": {"data": {"metrics": there}}});
                }
                let (reply, close) = (reply.to_string(), "connection: close");
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{close}\r\n\r\n", reply.len());
                stream.get_mut().write_all((head + &reply).as_bytes()).unwrap();
            }
        });
        (url, names)
    }

    fn mlflow(url: String) -> Mlflow {
        let agent = Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build();
        Mlflow {
            times: Times::default(),
            server: Server { agent: agent.into(), url, authorization: None },
            experiment: "1".to_owned(),
            run: "r".to_owned(),
            sent_ms: 0,
        }
    }

    #[test]
    fn a_number_that_is_refused_keeps_no_other_away() {
        let (url, taken) = server();
        let mut mlflow = mlflow(url);
        let numbers = |bad: &str| -> Numbers {
            (0..10).map(|n| (format!("{n}{}", if n == 6 { bad } else { "" }), 1.0)).collect()
        };
        let refused = mlflow.send(3, &numbers(" refused")).unwrap_err();
        assert!(
            matches!(&refused, TrackError::LeftOut { step: 3, count: 1, first } if first == "6 refused"),
            "{refused}"
        );
        assert!(mlflow.times.of(3) == 1);
        let all: Vec<String> = taken.try_iter().flatten().collect();
        let expected = ["0", "1", "2", "3", "4", "5", "7", "8", "9", STEP_NAME];
        assert_eq!(all, expected, "the step's own number is last");
        mlflow.send(4, &numbers("")).unwrap();
        assert_eq!(taken.try_iter().count(), 1, "a batch that is taken goes out once");
    }

    #[test]
    fn numbers_that_came_through_before_their_step_failed_are_not_sent_again() {
        let (url, taken) = server();
        let mut mlflow = mlflow(url);
        let numbers =
            |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 1.0)).collect::<Numbers>();
        let of_step = numbers(&["0", "1", "2", "3", "4 refused", "5", "6", "7 breaks"]);
        assert!(matches!(mlflow.send(3, &of_step), Err(TrackError::Unreachable { .. })));
        let before: Vec<String> = taken.try_iter().flatten().collect();
        assert!(before.contains(&"0".to_owned()) && mlflow.times.of(3) == 0, "{before:?}");
        assert!(matches!(mlflow.send(3, &of_step), Err(TrackError::LeftOut { step: 3, count: 1, .. })));
        let all: Vec<String> = before.into_iter().chain(taken.try_iter().flatten()).collect();
        assert_eq!(all, ["0", "1", "2", "3", "5", "6", "7 breaks", STEP_NAME]);
        // Where many are refused it is not they that are at fault: the step is not there, and will be sent again.
        let mut many: Numbers = (0..40).map(|n| (format!("refused {n}"), 1.0)).collect();
        many.extend(numbers(&["0", "1"]));
        for expected in [&["0", "1"][..], &[]] {
            assert!(matches!(mlflow.send(5, &many), Err(TrackError::Refused { status: 400, .. })));
            assert!(mlflow.times.of(5) == 0);
            assert_eq!(taken.try_iter().flatten().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn names_become_such_as_are_taken() {
        assert_eq!(usable("rollout/pass@4"), "rollout/pass_4");
        for (name, expected) in
            [("", "_"), ("a//b", "a/_/b"), ("..", "_"), ("eval/", "eval/_"), ("/a/./b", "_/a/_/b")]
        {
            assert_eq!(usable(name), expected, "{name}");
        }
        assert_eq!(usable(&"x".repeat(300)), "x".repeat(250));
        assert_eq!(usable("perf/request/e2e_latency/p99"), "perf/request/e2e_latency/p99");
    }
}
