//! The systems that are compared: their configuration, and how they are started before fake workers.
//!
//! Each gets two threads or processes where that can be told, as many as the gateway has on the smallest machine that
//! is worth measuring on, and what its manual says about many requests: connections to workers are kept, nothing is
//! logged, streams are passed on as they come.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::case::{Case, Load, Pair, Shape};
use super::http::{Reply, call, free_address};
use super::process::Process;
use super::share::Share;
use super::tools::Tools;
use crate::workspace::say_aside;

/// Something that stands between clients and workers, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum System {
    /// The worker itself.
    Direct,
    Nginx,
    Haproxy,
    SglangRouter,
    Smg,
    Rollscope,
    /// Rollscope with `--record`.
    Recording,
}

/// The fake workers of a case.
#[derive(Debug)]
pub(super) struct Fleet {
    plain: Worker,
    pair: Option<(Worker, Worker)>,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) address: SocketAddr,
    /// Held for its drop.
    _process: Process,
}

/// A system that serves.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) address: SocketAddr,
    /// None where nothing stands between.
    pub(super) process: Option<Process>,
    /// What it is held to, if it is.
    pub(super) share: Option<Share>,
    /// Size of a reply's body with its framing: shows who merges. None where replies do not end by themselves.
    pub(super) reply_bytes: Option<usize>,
}

/// A reply that shows that a system is ready.
struct Expectation {
    /// What is posted to `/generate`; none where streams do not end by themselves, and `/health` has to do.
    request: Option<String>,
    /// The least size of the reply.
    bytes: usize,
    /// What stands in it.
    has: &'static str,
}

/// Only prefill workers say this.
const MERGED: &str = "\"pd_prefill_bootstrap_duration\":";
/// Until then a server has to answer.
const START_LIMIT: Duration = Duration::from_mins(1);
/// Processes or threads of the proxies.
const THREADS: usize = 2;

// === impl System ===

impl System {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::SglangRouter => "sglang-router",
            Self::Smg => "smg",
            Self::Rollscope => "rollscope",
            Self::Recording => "rollscope --record",
        }
    }

    /// Starts it before a fleet and waits until it answers as its workers do. Its files are in the folder.
    pub(super) fn start(self, case: &Case, fleet: &Fleet, tools: &Tools, dir: &Path) -> Result<Running> {
        let dir = dir.join(self.name().replace(" --", "-"));
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let address = free_address()?;
        let command = match self {
            Self::Direct => {
                let address = fleet.plain.address;
                return Ok(Running { address, process: None, share: None, reply_bytes: None });
            }
            Self::Nginx => nginx(address, fleet, tools, &dir)?,
            Self::Haproxy => haproxy(address, fleet, tools, &dir)?,
            Self::SglangRouter => {
                let mut command = Command::new(tools.venv().join("bin/python"));
                command.args(["-m", "sglang_router.launch_router"]).args(router_options(address, fleet)?);
                offline(command)
            }
            Self::Smg => {
                let mut command = Command::new(tools.venv().join("bin/smg"));
                command.arg("launch").args(router_options(address, fleet)?);
                offline(command)
            }
            Self::Rollscope => rollscope(address, fleet, tools),
            Self::Recording => {
                let mut command = rollscope(address, fleet, tools);
                command.arg("--record").arg(dir.join("run"));
                command
            }
        };
        let mut process = Process::spawn(&command, &dir.join("printed.txt"))?;
        let reply_bytes = await_answer(address, &self.expectation(case), &mut process)
            .with_context(|| format!("{} is not ready", self.name()))?;
        let share = if case.load == Load::Held { self.hold(case, &process)? } else { None };
        Ok(Running { address, process: Some(process), share, reply_bytes })
    }

    /// Only once it is ready: a start may take long.
    fn hold(self, case: &Case, process: &Process) -> Result<Option<Share>> {
        let name = format!("{}-{}", case.name, self.name().replace(' ', ""));
        let share = Share::hold(&name, &process.family()?)?;
        if share.is_none() {
            say_aside(&format!("{} is not held to a share: no control group is to be had", self.name()));
        }
        Ok(share)
    }

    /// What it answers once it is ready. Ours has to have merged, for less would be no comparison; not every router
    /// does.
    fn expectation(self, case: &Case) -> Expectation {
        let decode = case.pair.as_ref().map_or(&case.plain, |pair| &pair.decode);
        let (shape, has) = match self {
            Self::Rollscope | Self::Recording if case.pair.is_some() => (&case.plain, MERGED),
            Self::SglangRouter | Self::Smg => (decode, ""),
            Self::Direct | Self::Nginx | Self::Haproxy | Self::Rollscope | Self::Recording => {
                (&case.plain, "")
            }
        };
        Expectation {
            request: (!case.plain.is_held).then(|| case.request()),
            bytes: shape.bytes.max(shape.logprobs),
            has,
        }
    }
}

// === impl Fleet ===

impl Fleet {
    pub(super) fn start(case: &Case, tools: &Tools, dir: &Path) -> Result<Self> {
        let plain = Worker::start("regular", &case.plain, tools, dir)?;
        let pair = match &case.pair {
            Some(Pair { prefill, decode }) => Some((
                Worker::start("prefill", prefill, tools, dir)?,
                Worker::start("decode", decode, tools, dir)?,
            )),
            None => None,
        };
        Ok(Self { plain, pair })
    }

    /// Lets streams that are held go on.
    pub(super) fn release(&self) -> Result<()> {
        for worker in [Some(&self.plain), self.pair.as_ref().map(|(_, decode)| decode)].into_iter().flatten()
        {
            ensure!(call(worker.address, "POST", "/release", "")?.status == 200, "a worker does not release");
        }
        Ok(())
    }

    /// As every router takes it.
    fn options(&self) -> Vec<String> {
        let url = |worker: &Worker| format!("http://{}", worker.address);
        match &self.pair {
            None => vec!["--worker-urls".to_owned(), url(&self.plain)],
            Some((prefill, decode)) => [
                "--pd-disaggregation",
                "--prefill",
                &url(prefill),
                // Nobody connects to it: the workers transfer nothing.
                "9000",
                "--decode",
                &url(decode),
            ]
            .map(str::to_owned)
            .to_vec(),
        }
    }
}

// === impl Expectation ===

impl Expectation {
    fn is_met_by(&self, reply: &Reply) -> bool {
        reply.status == 200
            && (self.request.is_none() || reply.body.len() >= self.bytes && reply.body.contains(self.has))
    }
}

// === impl Worker ===

impl Worker {
    fn start(role: &str, shape: &Shape, tools: &Tools, dir: &Path) -> Result<Self> {
        let mut command = Command::new(tools.worker());
        command.args(["--role", role]);
        for (name, value) in
            [("--bytes", shape.bytes), ("--logprobs", shape.logprobs), ("--events", shape.events)]
        {
            command.args([name, &value.to_string()]);
        }
        command.args(["--delay-ms", &shape.delay_ms.to_string()]);
        if shape.is_held {
            command.arg("--hold");
        }
        let mut process = Process::spawn(&command, &dir.join(format!("worker-{role}.txt")))?;
        let started = Instant::now();
        loop {
            if let Some(line) = process.printed()?.strip_suffix('\n') {
                let address = line.parse().with_context(|| format!("not an address: {line}"))?;
                return Ok(Self { address, _process: process });
            }
            process.check_alive()?;
            ensure!(started.elapsed() < START_LIMIT, "a fake worker does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits for the reply that is expected; gives its size if it has an end.
fn await_answer(address: SocketAddr, expected: &Expectation, process: &mut Process) -> Result<Option<usize>> {
    let started = Instant::now();
    loop {
        let reply = match &expected.request {
            Some(request) => call(address, "POST", "/generate", request),
            None => call(address, "GET", "/health", ""),
        };
        let complaint = match reply {
            Ok(reply) if expected.is_met_by(&reply) => {
                return Ok(expected.request.as_ref().map(|_| reply.body.len()));
            }
            Ok(reply) => {
                format!("status {}: {}", reply.status, reply.body.chars().take(300).collect::<String>())
            }
            Err(error) => format!("{error:#}"),
        };
        process.check_alive()?;
        ensure!(started.elapsed() < START_LIMIT, "no reply as expected: {complaint}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn rollscope(address: SocketAddr, fleet: &Fleet, tools: &Tools) -> Command {
    let mut command = Command::new(tools.rollscope());
    command.args(["gateway", "--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(fleet.options());
    command
}

fn router_options(address: SocketAddr, fleet: &Fleet) -> Result<Vec<String>> {
    let (port, metrics_port) = (address.port().to_string(), free_address()?.port().to_string());
    let mut options: Vec<String> = [
        ["--host", "127.0.0.1"],
        ["--port", &port],
        ["--policy", "round_robin"],
        ["--prometheus-host", "127.0.0.1"],
        ["--prometheus-port", &metrics_port],
        ["--log-level", "error"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect();
    options.extend(fleet.options());
    Ok(options)
}

/// Routers look for a tokenizer of each worker's model; there is none to be found.
fn offline(mut command: Command) -> Command {
    command.envs([("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")]);
    command
}

fn nginx(address: SocketAddr, fleet: &Fleet, tools: &Tools, dir: &Path) -> Result<Command> {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {}/{kind};\n", dir.display()))
        .concat();
    let configuration = format!(
        "daemon off;
pid {dir}/nginx.pid;
error_log stderr error;
user root;
worker_processes {THREADS};
events {{ worker_connections 16384; }}
http {{
{temporary}  access_log off;
  client_max_body_size 0;
  keepalive_requests 1000000000;
  upstream worker {{ server {worker}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://worker;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
      proxy_buffer_size 64k;
      proxy_buffers 8 64k;
      proxy_read_timeout 1h;
    }}
  }}
}}
",
        dir = dir.display(),
        worker = fleet.plain.address,
    );
    let path = dir.join("nginx.conf");
    fs::write(&path, configuration).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(tools.nginx()?);
    command.arg("-p").arg(dir).arg("-e").arg("stderr").arg("-c").arg(path);
    Ok(command)
}

fn haproxy(address: SocketAddr, fleet: &Fleet, tools: &Tools, dir: &Path) -> Result<Command> {
    let configuration = format!(
        "global
  nbthread {THREADS}
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind {address}
  default_backend workers
backend workers
  server worker {}
",
        fleet.plain.address
    );
    let path = dir.join("haproxy.cfg");
    fs::write(&path, configuration).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(tools.haproxy()?);
    command.arg("-q").arg("-db").arg("-f").arg(path);
    Ok(command)
}
