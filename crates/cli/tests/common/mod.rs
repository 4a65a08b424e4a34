//! Real processes of this program, and calls to them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails here fails its test")]
#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses its own part of this module")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// A server of this program in a process of its own; it ends with the test.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

/// Anything that a test waits for is there by then, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The program with arguments.
pub(crate) fn rollscope(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollscope"));
    command.args(args);
    command
}

/// Runs the program to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    rollscope(args).stdin(Stdio::null()).output().unwrap()
}

/// What went to stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What went to stdout.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs the program to a good end and gives its stdout.
pub(crate) fn run_well(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "rollscope {args:?}: {}\n{}", output.status, stderr(&output));
    stdout(&output)
}

/// The report of a run.
pub(crate) fn report(run: &Path) -> Value {
    serde_json::from_str(&run_well(&["report", run.to_str().unwrap(), "--json"])).unwrap()
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Posts JSON; gives the status and the reply, JSON or text.
pub(crate) async fn post(url: &str, body: &Value) -> (u16, Value) {
    call("POST", url, body.to_string()).await.unwrap()
}

/// Gets a page.
pub(crate) async fn get(url: &str) -> (u16, Value) {
    call("GET", url, String::new()).await.unwrap()
}

/// One call; an error where there is no reply.
pub(crate) async fn call(method: &str, url: &str, body: String) -> Result<(u16, Value), String> {
    call_with(method, url, body, &[]).await
}

/// One call with further headers.
pub(crate) async fn call_with(
    method: &str,
    url: &str,
    body: String,
    headers: &[(&str, &str)],
) -> Result<(u16, Value), String> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut request =
        http::Request::builder().method(method).uri(url).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let reply = client.request(request).await.map_err(|error| error.to_string())?;
    let status = reply.status().as_u16();
    let bytes = reply.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}

/// The processes that a process has started and that still live.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
        .collect()
}

/// The command line of a process.
pub(crate) fn command_line(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

/// Whether a process lives; one that has ended and was not waited for does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// Sends a signal, `-KILL` or such.
pub(crate) fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

// === impl Server ===

impl Server {
    /// Starts a server and waits for its ready line.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::started(rollscope(args), args)
    }

    /// The same, with further variables of the environment.
    pub(crate) fn start_in(environment: &[(&str, &str)], args: &[&str]) -> Self {
        let mut command = rollscope(args);
        command.envs(environment.iter().copied());
        Self::started(command, args)
    }

    /// The same, with a low limit of open files that it may raise, as most processes are started.
    pub(crate) fn start_with_few_files(args: &[&str]) -> Self {
        Self::start_limited("ulimit -S -n 256", args)
    }

    /// The same, with limits as the shell sets them.
    pub(crate) fn start_limited(limits: &str, args: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let script = format!("{limits} && exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_rollscope")]);
        shell.args(args);
        Self::started(shell, args)
    }

    fn started(mut command: Command, args: &[&str]) -> Self {
        let mut child = command
            .arg("--exit-on-stdin-close")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let Some((_, url)) = line.trim().split_once(" ready on ") else {
            let mut said = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
            panic!("rollscope {args:?} is not ready: {line:?} {said}");
        };
        Self { url: url.to_owned(), stdin: child.stdin.take(), child }
    }

    /// The port it listens on.
    pub(crate) fn port(&self) -> &str {
        self.url.rsplit(':').next().unwrap()
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end and waits until it has, with a good exit code.
    pub(crate) fn stop(mut self) {
        self.stdin.take();
        assert!(self.child.wait().unwrap().success());
    }

    /// The same; gives what it said on stderr.
    pub(crate) fn stop_and_hear(mut self) -> String {
        self.stdin.take();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }

    /// Waits until it has said a line on stderr.
    pub(crate) fn hear(&mut self, expected: &str) {
        let lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let (tell, told) = mpsc::sync_channel(16);
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        while let Ok(line) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if line == expected {
                return;
            }
            said.push(line);
        }
        panic!("never said: {expected}\nbut: {said:?}");
    }

    /// Waits until it has ended by itself; the code that it ended with.
    pub(crate) fn exit_code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already where these fail.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
