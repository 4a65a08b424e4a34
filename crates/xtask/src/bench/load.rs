//! Making requests, and taking the figures of one round.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::case::{Case, Load};
use super::figure::{Figure, Figures, Measured};
use super::http::call;
use super::process::Process;
use super::share::SHARE;
use super::system::{Fleet, Running, System};
use super::tools::Tools;
use crate::host::output;

/// What requests are made with, for one case.
#[derive(Debug)]
pub(super) struct Generator<'a> {
    case: &'a Case,
    tools: &'a Tools,
    fleet: &'a Fleet,
    /// The case's folder, with the request in `request.json`.
    dir: &'a Path,
    seconds: u64,
}

/// What wrk's script prints.
#[derive(Debug, Deserialize)]
struct Closed {
    requests: u64,
    duration_us: u64,
    p50_us: u64,
    p99_us: u64,
    failed: u64,
}

/// What `bench_client` prints.
#[derive(Debug, Deserialize)]
struct FirstEvents {
    first_event_p50_us: f64,
    first_event_p99_us: f64,
}

/// The same.
#[derive(Debug, Deserialize)]
struct Streams {
    failed: usize,
    complaint: String,
}

/// Open streams to aim at.
const STREAMS: usize = 5000;
/// Requests of a rollout step, where they are said to be of steps: as many as of one of slime's.
const STEP_REQUESTS: u64 = 16_384;
/// Descriptors that a gateway needs for a stream of a pair, for a moment: the client's and two workers'.
const DESCRIPTORS_PER_STREAM: usize = 3;
/// Descriptors left for everything else.
const DESCRIPTORS_SPARED: usize = 256;
/// Threads that have worked for no more than a twentieth of so long are at rest: they look about now and then.
const REST: Duration = Duration::from_millis(100);
const REST_LIMIT: Duration = Duration::from_secs(30);
/// Threads that make, write and seal what is recorded carry this in their names, which the system cuts to 15 bytes.
const RECORDER_THREADS: [&str; 3] = ["rollscope-profi", "rollscope-writi", "rollscope-seali"];

// === impl Generator ===

impl<'a> Generator<'a> {
    pub(super) fn new(
        case: &'a Case,
        tools: &'a Tools,
        fleet: &'a Fleet,
        dir: &'a Path,
        seconds: u64,
    ) -> Result<Self> {
        let write = |name: &str, text: &str| {
            std::fs::write(dir.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        write("request.json", &case.request())?;
        write("wrk.lua", &script(&case.request(), case.load == Load::Recording))?;
        Ok(Self { case, tools, fleet, dir, seconds })
    }

    /// Opens connections and fills caches, so that the first round is like the others.
    pub(super) fn warm_up(&self, running: &Running) -> Result<()> {
        match self.case.load {
            Load::Closed | Load::Held => self.closed(running, 1).map(drop),
            // A system of its own each round is warmed up, or not, within the round.
            Load::FirstEvent | Load::Streams | Load::Recording => Ok(()),
        }
    }

    /// So many requests as fit into a window, of which nothing is told.
    pub(super) fn exercise(&self, running: &Running) -> Result<()> {
        self.closed(running, self.seconds).map(drop)
    }

    /// One round.
    pub(super) fn measure(&self, running: Running) -> Result<(Figures, Option<Running>)> {
        match self.case.load {
            Load::Closed | Load::Held => self.closed_round(&running).map(|figures| (figures, Some(running))),
            Load::FirstEvent => self.first_event(&running).map(|figures| (figures, Some(running))),
            Load::Streams => self.streams(&running).map(|figures| (figures, None)),
            Load::Recording => bail!("what records is measured in turns"),
        }
    }

    fn closed_round(&self, running: &Running) -> Result<Figures> {
        let before = cpu(running)?;
        let closed = self.closed(running, self.seconds)?;
        let mut figures = closed.figures();
        if let (Some(process), Some(before)) = (&running.process, before) {
            let used = process.cpu()?.saturating_sub(before);
            figures.insert(Figure::Cpu, per_request_us(used, closed.requests));
            figures.insert(Figure::Memory, mib(process.resident_bytes()?));
            let share_s = SHARE * closed.duration_us as f64 / 1e6;
            figures.extend(
                running.share.as_ref().map(|_| (Figure::Share, used.as_secs_f64() / share_s * 100.0)),
            );
        }
        figures.extend(running.reply_bytes.map(|bytes| (Figure::Reply, bytes as f64 / 1e3)));
        Ok(figures)
    }

    fn closed(&self, running: &Running, seconds: u64) -> Result<Closed> {
        self.closed_from(running, seconds, 0)
    }

    /// The same behind so many requests that were served before, which tell what step the first ones are of.
    fn closed_from(&self, running: &Running, seconds: u64, before: u64) -> Result<Closed> {
        let printed = output(
            Command::new(self.tools.wrk())
                .args([
                    "--threads",
                    "1",
                    "--timeout",
                    "30s",
                    "--connections",
                    &self.connections().to_string(),
                ])
                .arg("--duration")
                .arg(format!("{seconds}s"))
                .arg("--script")
                .arg(self.dir.join("wrk.lua"))
                .arg(format!("http://{}/generate", running.address))
                .args(["--", &before.to_string()]),
        )?;
        let closed: Closed = result(&printed)?;
        ensure!(closed.requests > 0, "wrk got no reply: {printed}");
        Ok(closed)
    }

    /// A system that is held to a share waits for most of the time, so that it takes many to have always something to do.
    fn connections(&self) -> u32 {
        if self.case.load == Load::Held { 128 } else { 16 }
    }

    fn first_event(&self, running: &Running) -> Result<Figures> {
        let mut client = self.client("first-event", running);
        let events: FirstEvents = result(&output(client.arg(self.seconds.to_string()))?)?;
        Ok(Figures::from([
            (Figure::FirstEventP50, events.first_event_p50_us / 1e3),
            (Figure::FirstEventP99, events.first_event_p99_us / 1e3),
        ]))
    }

    fn streams(&self, running: &Running) -> Result<Figures> {
        let process = running.process.as_ref().context("streams are measured through something")?;
        let count = stream_count()?;
        let before = process.resident_bytes()?;
        let mut client = self.client("streams", running);
        let mut client = client.arg(count.to_string()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(client.stdout.take().context("the client prints nothing")?).lines();
        let opened = lines.next().context("the client ended early")??;
        ensure!(opened == "open", "the client says: {opened}");
        let open = process.resident_bytes()?;
        self.fleet.release()?;
        let ended = lines.next().context("the client ended early")??;
        client.wait()?;
        let streams: Streams = result(&ended)?;
        if streams.failed > 0 {
            crate::workspace::say_aside(&format!("a stream failed: {}", streams.complaint));
        }
        Ok(Figures::from([
            (Figure::Streams, count as f64),
            (Figure::Failed, streams.failed as f64),
            (Figure::Memory, mib(open)),
            (Figure::StreamMemory, open.saturating_sub(before) as f64 / 1024.0 / count as f64),
        ]))
    }

    /// What the threads that serve take: systems that were started for a round serve in turns, a second each, so that what
    /// else the machine does is seen by all of them. Gives how many requests each has served.
    pub(super) fn serve_in_turns(
        &self,
        running: &BTreeMap<System, Running>,
        measured: &mut Measured,
    ) -> Result<BTreeMap<System, u64>> {
        let mut served: BTreeMap<System, u64> = BTreeMap::new();
        for (system, running) in running {
            served.insert(*system, self.closed_from(running, 1, 0)?.requests);
        }
        for turn in 0..self.seconds {
            let in_order: Vec<_> =
                if turn % 2 == 0 { running.iter().collect() } else { running.iter().rev().collect() };
            for (system, running) in in_order {
                let process = running.process.as_ref().context("recording is measured in a gateway")?;
                let served = served.entry(*system).or_default();
                let before = serving_cpu(&process.cpu_by_thread()?);
                let closed = self.closed_from(running, 1, *served)?;
                let used = serving_cpu(&process.cpu_by_thread()?).saturating_sub(before);
                let mut figures = closed.figures();
                figures.insert(Figure::ServingCpu, per_request_us(used, closed.requests));
                measured.add(*system, figures);
                let over = *served / STEP_REQUESTS..(*served + closed.requests) / STEP_REQUESTS;
                *served += closed.requests;
                for before in over.filter(|_| *system == System::Recording) {
                    end_step(running, 1 + before)?;
                }
                rest(process)?;
            }
        }
        Ok(served)
    }

    /// What a system has taken for its requests by its end, when all is sealed. Without a recorder there is nothing to drop and
    /// nothing to seal, and the figures are what to compare with.
    pub(super) fn end_recording(mut running: Running, served: u64) -> Result<Figures> {
        let process = running.process.take().context("recording is measured in a gateway")?;
        let dropped = counter(&running, "rollscope_records_dropped_total")?;
        let memory = mib(process.resident_bytes()?);
        let whole = process.stop()?;
        Ok(Figures::from([
            (Figure::StepRequests, served as f64 / served.div_ceil(STEP_REQUESTS) as f64),
            (Figure::WholeCpu, per_request_us(whole, served)),
            (Figure::Dropped, dropped),
            (Figure::Memory, memory),
        ]))
    }

    fn client(&self, mode: &str, running: &Running) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -n "$(ulimit -Hn)"; exec "$0" "$@""#]).arg(self.tools.client());
        command.args([mode, &running.address.to_string()]).arg(self.dir.join("request.json"));
        command
    }
}

// === impl Closed ===

impl Closed {
    fn figures(&self) -> Figures {
        Figures::from([
            (Figure::Rate, self.requests as f64 / (self.duration_us as f64 / 1e6)),
            (Figure::P50, self.p50_us as f64 / 1e3),
            (Figure::P99, self.p99_us as f64 / 1e3),
            (Figure::Failed, self.failed as f64),
        ])
    }
}

/// What wrk posts, and how it reports.
fn script(request: &str, has_steps: bool) -> String {
    let steps = format!(
        r#"local count, kept = 0, nil
init = function(args)
  count = tonumber(args[1])
end
request = function()
  if kept == nil or count % {STEP_REQUESTS} == 0 then
    wrk.headers["x-rollscope-step"] = string.format("%d", 1 + count / {STEP_REQUESTS})
    kept = wrk.format()
  end
  count = count + 1
  return kept
end
"#
    );
    let steps = if has_steps { steps.as_str() } else { "" };
    format!(
        r#"wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = [==[{request}]==]
{steps}done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d}}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#
    )
}

/// The line of a result among what else is printed.
fn result<T: DeserializeOwned>(printed: &str) -> Result<T> {
    let line = printed.lines().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("no result in: {printed}"))?;
    serde_json::from_str(line).with_context(|| format!("cannot read the result: {line}"))
}

fn cpu(running: &Running) -> Result<Option<Duration>> {
    running.process.as_ref().map(Process::cpu).transpose()
}

fn serving_cpu(threads: &BTreeMap<String, Duration>) -> Duration {
    threads.iter().filter(|(name, _)| !RECORDER_THREADS.contains(&name.as_str())).map(|(_, cpu)| *cpu).sum()
}

/// As a trainer does when it has all samples of a step: its numbers come back when it is sealed.
fn end_step(running: &Running, step: u64) -> Result<()> {
    let reply = call(running.address, "POST", &format!("/rollscope/steps/{step}/end"), "{}")?;
    ensure!(reply.status == 200, "step {step} cannot be ended: {}", reply.body);
    Ok(())
}

/// Waits until the threads behind those that serve do nothing any more: what a viewer shows of a step is made when its end has been
/// answered, and is not to fall into the second of another gateway.
fn rest(process: &Process) -> Result<()> {
    let behind = || -> Result<Duration> {
        let threads = process.cpu_by_thread()?.into_iter();
        Ok(threads.filter(|(name, _)| RECORDER_THREADS.contains(&&**name)).map(|(_, cpu)| cpu).sum())
    };
    let begun = Instant::now();
    loop {
        let before = behind()?;
        std::thread::sleep(REST);
        if behind()?.saturating_sub(before) < REST / 20 {
            return Ok(());
        }
        ensure!(begun.elapsed() < REST_LIMIT, "the recorder does not come to rest");
    }
}

fn counter(running: &Running, name: &str) -> Result<f64> {
    let page = call(running.address, "GET", "/metrics", "")?.body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.with_context(|| format!("no such counter: {name}"))
}

fn stream_count() -> Result<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").context("cannot read the limits")?;
    let hard = limits.lines().find_map(|line| {
        line.strip_prefix("Max open files")?.split_whitespace().nth(1)?.parse::<usize>().ok()
    });
    let hard = hard.unwrap_or(usize::MAX);
    Ok(STREAMS.min(hard.saturating_sub(DESCRIPTORS_SPARED) / DESCRIPTORS_PER_STREAM))
}

fn per_request_us(cpu: Duration, requests: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / requests as f64
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
