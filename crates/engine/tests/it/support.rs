//! Servers in this process, and an HTTP client for them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rollscope_config::{Options, Published};
use rollscope_engine::{Engine, EngineError, EngineOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A served engine. When dropped it stops, and it must end well. That blocks: what is joined with others must not drop one.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    stop: Option<oneshot::Sender<()>>,
    runtime: Handle,
    /// None for a client alone.
    task: Option<JoinHandle<Result<(), EngineError>>>,
}

/// A prefill and a decode server.
pub(crate) struct Pair {
    pub(crate) prefill: Server,
    pub(crate) decode: Server,
    pub(crate) bootstrap_port: u64,
}

/// Makes a server of which each token takes a twentieth of a second, so that a request of [`endless`] lives until a test ends it.
pub(crate) const SLOW: [&str; 2] =
    ["--model-path", concat!("sim:", env!("CARGO_MANIFEST_DIR"), "/tests/slow.json")];

/// What anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) fn options(args: &[&str]) -> EngineOptions {
    let model: &[_] = if args.contains(&"--model-path") { &[] } else { &["--model-path", "bundled"] };
    EngineOptions::from_args([model, args].concat()).unwrap()
}

/// A room that no other test has.
pub(crate) fn fresh_room() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Server {
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::try_start(args).await.unwrap()
    }

    pub(crate) async fn try_start(args: &[&str]) -> Result<Self, EngineError> {
        Ok(Self::serve(Engine::start(Published::publish(options(args))).await?).await)
    }

    pub(crate) async fn serve(engine: Engine) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(engine.serve(listener, async {
            stopped.await.ok();
        }));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, client, runtime: Handle::current(), stop: Some(stop), task: Some(task) }
    }

    /// A client of another server of this host.
    pub(crate) fn at(&self, port: u64) -> Self {
        let address = SocketAddr::new(self.address.ip(), port as u16);
        Self { address, client: self.client.clone(), runtime: self.runtime.clone(), stop: None, task: None }
    }

    /// What tells the server to stop.
    pub(crate) fn stop(&mut self) -> oneshot::Sender<()> {
        self.stop.take().unwrap()
    }

    pub(crate) async fn ended(mut self) -> Result<(), EngineError> {
        tokio::time::timeout(PATIENCE, self.task.take().unwrap()).await.unwrap().unwrap()
    }

    /// Ends the server at once, as if it had been killed.
    pub(crate) async fn kill(mut self) {
        let task = self.task.take().unwrap();
        task.abort();
        drop(task.await);
    }

    /// Gives up what a test has left, stops, and checks that the scheduler had not stopped before and that its audits, when it was
    /// idle and at its end, have found nothing.
    async fn end(&self, task: JoinHandle<Result<(), EngineError>>, stop: Option<oneshot::Sender<()>>) {
        if let Some(stop) = stop {
            let request = Request::post(format!("http://{}/abort_request", self.address))
                .body(Full::new(Bytes::from_static(b"{\"abort_all\": true}")))
                .unwrap();
            // It fails where the scheduler is gone, which is told below.
            drop(tokio::time::timeout(PATIENCE, self.client.request(request)).await);
            stop.send(()).ok();
        }
        let ended = tokio::time::timeout(PATIENCE, task).await.expect("the server never ends");
        ended.unwrap().expect("a server that was told to stop ends well");
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: &str) -> Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .unwrap();
        tokio::time::timeout(PATIENCE, self.client.request(request)).await.unwrap().unwrap()
    }

    pub(crate) async fn text(&self, method: Method, path: &str, body: &str) -> (StatusCode, String) {
        let response = self.send(method, path, body).await;
        let status = response.status();
        let body = tokio::time::timeout(PATIENCE, response.into_body().collect()).await.unwrap();
        (status, String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap())
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> (StatusCode, String) {
        self.send_json(Method::PUT, path, body).await
    }

    /// With the type of what is sent, without which a bootstrap server takes nothing.
    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> (StatusCode, String) {
        self.send_json(Method::POST, path, body).await
    }

    async fn send_json(&self, method: Method, path: &str, body: &Value) -> (StatusCode, String) {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let response = tokio::time::timeout(PATIENCE, self.client.request(request)).await.unwrap().unwrap();
        let (status, body) = (response.status(), response.into_body().collect());
        let body = tokio::time::timeout(PATIENCE, body).await.unwrap().unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.text(Method::GET, path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let (status, body) = self.text(Method::POST, path, &body.to_string()).await;
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// The reply of a request that must succeed.
    pub(crate) async fn generate(&self, body: &Value) -> Value {
        let (status, reply) = self.post("/generate", body).await;
        assert_eq!(status, StatusCode::OK, "{body}: {reply}");
        reply
    }

    /// The events of a stream that must begin well, `[DONE]` checked and left out.
    pub(crate) async fn stream(&self, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let (status, text) = self.text(Method::POST, "/generate", &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{body}: {text}");
        let events = text.strip_suffix("data: [DONE]\n\n").expect("a stream ends with [DONE]");
        let data = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.split_terminator("\n\n").map(data).collect()
    }

    /// The load of a data-parallel rank.
    async fn load_of(&self, rank: usize) -> Value {
        self.get(&format!("/v1/loads?dp_rank={rank}")).await["loads"][0].clone()
    }

    /// That of the first, which most servers have alone.
    pub(crate) async fn load(&self) -> Value {
        self.load_of(0).await
    }

    /// Waits until the load meets the condition.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        self.until_rank(0, what, condition).await
    }

    /// Waits until that of a rank does.
    pub(crate) async fn until_rank(
        &self,
        rank: usize,
        what: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let load = self.load_of(rank).await;
            if condition(&load) {
                return load;
            }
            assert!(Instant::now() < deadline, "never {what}: {load}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A value of `/metrics` as it is written there, of the first whose labels have this text in them.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> String {
        let (_, page) = self.text(Method::GET, "/metrics", "").await;
        let start = format!("sglang:{name}{{");
        let line = page.lines().find(|line| line.starts_with(&start) && line.contains(label));
        let line = line.unwrap_or_else(|| panic!("no {name} with {label}: {page}"));
        line.rsplit(' ').next().unwrap().to_owned()
    }

    /// Waits until no request is live, and checks that nothing is held. The scheduler audits itself then, and would be gone
    /// if it had found anything.
    pub(crate) async fn until_free(&self) {
        let load = self.until("idle", |load| live(load) == 0).await;
        assert_eq!(load["num_used_tokens"], 0, "{load}");
        let (status, body) = self.text(Method::POST, "/flush_cache", "").await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let (status, body) = self.text(Method::GET, "/health", "").await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let (Some(task), false) = (self.task.take(), std::thread::panicking()) {
            let stop = self.stop.take();
            tokio::task::block_in_place(|| self.runtime.block_on(self.end(task, stop)));
        }
    }
}

impl Pair {
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::start_with(args, args).await
    }

    pub(crate) async fn start_with(prefill: &[&str], decode: &[&str]) -> Self {
        let prefill = Self::start_prefill(prefill).await;
        let decode = Server::start(&[&["--disaggregation-mode", "decode"], decode].concat()).await;
        let bootstrap_port = bootstrap_port(&prefill).await;
        Self { prefill, decode, bootstrap_port }
    }

    pub(crate) async fn start_prefill(args: &[&str]) -> Server {
        let mode = ["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"];
        Server::start(&[&mode, args].concat()).await
    }

    /// The body with bootstrap fields, as a router writes them.
    pub(crate) fn paired(&self, body: &Value) -> Value {
        let mut body = body.clone();
        let count = [&body["text"], &body["input_ids"]]
            .into_iter()
            .filter_map(Value::as_array)
            .filter(|prompts| prompts.first().is_some_and(|prompt| !prompt.is_number()))
            .map(Vec::len)
            .next();
        (body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"]) = match count {
            None => (json!("127.0.0.1"), json!(self.bootstrap_port), json!(fresh_room())),
            Some(count) => (
                json!(vec!["127.0.0.1"; count]),
                json!(vec![self.bootstrap_port; count]),
                json!((0..count).map(|_| fresh_room()).collect::<Vec<_>>()),
            ),
        };
        body
    }

    /// Both legs' replies.
    pub(crate) async fn generate(&self, body: &Value) -> (Value, Value) {
        let body = self.paired(body);
        tokio::join!(self.prefill.generate(&body), self.decode.generate(&body))
    }

    pub(crate) async fn until_free(&self) {
        tokio::join!(self.prefill.until_free(), self.decode.until_free());
    }
}

/// The port of a prefill server's bootstrap server, as it is published.
pub(crate) async fn bootstrap_port(prefill: &Server) -> u64 {
    let info = prefill.get("/server_info").await;
    info["internal_states"][0]["disaggregation_bootstrap_port"].as_u64().unwrap()
}

/// Live requests of a load.
pub(crate) fn live(load: &Value) -> u64 {
    let core = load["num_running_reqs"].as_u64().unwrap() + load["num_waiting_reqs"].as_u64().unwrap();
    core + load["disaggregation"]["prefill_inflight_queue_reqs"].as_u64().unwrap_or(0)
}

/// A request that takes most of an hour on a server of [`SLOW`].
pub(crate) fn endless(rid: &str) -> Value {
    json!({"rid": rid, "text": "1+2=?\n", "sampling_params": {"max_new_tokens": 60_000, "ignore_eos": true}})
}

/// Sampling parameters under which the model takes its likeliest token.
pub(crate) fn greedy(max_new_tokens: usize) -> Value {
    json!({"temperature": 0, "max_new_tokens": max_new_tokens})
}
