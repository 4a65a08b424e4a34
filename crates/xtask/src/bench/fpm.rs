//! `cargo xtask bench fpm`: what forward-pass metrics cost a scheduler, and how many ranks a subscriber follows.
//!
//! A scheduler hands over a pass each millisecond, to our publisher and in turn to SGLang's, with no subscriber, one, and one
//! that does not read; and to ours with a rest before each pass, of which beginning and end are timed too. What other programs
//! do meanwhile adds to a median and never takes from it, so the least of the rounds counts; of a 99th percentile, which one
//! lucky round could hide, the middle of the rounds; what the rounds gave stands beside. The queue of the subscriber that does
//! not read is full before the first pass that is timed: read at last, it holds fewer than went before. Then one `rollscope fpm
//! top`, held on one core, follows a thousand ranks, and has to have heard as many messages as were sent.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::arguments::Arguments;
use super::process::Process;
use crate::host::{build, target_dir};
use crate::interop::python_script;
use crate::workspace::{Workspace, say, say_aside};

/// Who is there while passes are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    Nobody,
    Subscriber,
    Stalled,
}

/// Whose publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Ours,
    /// Ours, of a scheduler that rests before each pass.
    OursResting,
    Sglang,
}

/// What handing over took in a round, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    median: f64,
    p99: f64,
}

/// What it took in all rounds: a figure that counts, and the least and the most of the rounds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    median: f64,
    medians: (f64, f64),
    p99: f64,
    p99s: (f64, f64),
}

/// What was asked for, and what there is to do it with.
struct Plan {
    publish: bool,
    follow: bool,
    rounds: u32,
    seconds: u64,
    bench: Command,
    sglang: Command,
    rollscope: PathBuf,
    dir: PathBuf,
}

/// What a screen shows of all ranks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    rows: usize,
    messages: u64,
    lost: u64,
}

/// A process that says when it is ready and is told to go on. Dropping it ends it.
struct Part {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

const PASSES: &str = "3000";
const INTERVAL_US: &str = "1000";
/// Passes that go before where a subscriber does not read: more than have room in its queue and in its socket.
const FILLING: u32 = 20_000;
const MEDIAN_NS: f64 = 300.0;
const P99_NS: f64 = 2000.0;
const CHEAPER: f64 = 20.0;
const RANKS: u32 = 1000;
const MESSAGES_PER_S: u32 = 100;
/// Growth of the subscriber's memory that is none.
const GROWTH: f64 = 1.05;
/// How long after the last message the subscriber may have all of them.
const BEHIND_MS: f64 = 1000.0;

/// Runs what the arguments ask for; true if every bar is reached.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let plan = Plan::parse(workspace, args)?;
    let published = !plan.publish || plan.publish()?;
    let followed = !plan.follow || plan.follow()?;
    Ok(published && followed)
}

fn bar(is_met: bool, text: &str) -> bool {
    say(&format!("  {} {text}", if is_met { "PASS" } else { "MISS" }));
    is_met
}

/// The numbers of a line of names and numbers.
fn numbers(line: &str) -> Result<BTreeMap<&str, f64>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [name, number] => Ok((*name, number.parse()?)),
        _ => bail!("a name without a number: {line}"),
    });
    pairs.collect::<Result<_>>().with_context(|| format!("not names and numbers: {line}"))
}

// === impl Plan ===

impl Plan {
    fn parse(workspace: &Workspace, args: &[&str]) -> Result<Self> {
        let (mut parts, mut seconds, mut others) = (Vec::new(), 30, Vec::new());
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            match arg {
                "publish" | "follow" => parts.push(arg),
                "--seconds" => {
                    let value = args.next().and_then(|value| value.parse().ok());
                    seconds =
                        value.filter(|s| *s > 1).context("--seconds wants a whole number, 2 at least")?;
                }
                _ => others.push(arg),
            }
        }
        let Arguments { binary: rollscope, rounds } = Arguments::parse(workspace, &others)?;
        let options = ["--package", "rollscope-fpm", "--example", "bench_fpm", "--release"];
        let bench = Command::new(build(&workspace.root, &options)?);
        let sglang = python_script(workspace, "fpm_publish_bench.py")?;
        let dir = target_dir(&workspace.root, "bench")?.join("fpm");
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let is_wanted = |part| parts.is_empty() || parts.contains(&part);
        let (publish, follow) = (is_wanted("publish"), is_wanted("follow"));
        Ok(Self { publish, follow, rounds, seconds, bench, sglang, rollscope, dir })
    }

    /// Both publishers in turn.
    fn publish(&self) -> Result<bool> {
        say("== publish: handing a pass over, each millisecond, to ours and to SGLang's publisher");
        let mut costs: BTreeMap<(Beside, Whose), Vec<Cost>> = BTreeMap::new();
        for round in 1..=self.rounds {
            for beside in [Beside::Nobody, Beside::Subscriber, Beside::Stalled] {
                for whose in [Whose::Ours, Whose::OursResting, Whose::Sglang] {
                    let cost = self.cost(beside, whose)?;
                    costs.entry((beside, whose)).or_default().push(cost);
                }
            }
            say_aside(&format!("   round {round} of {}", self.rounds));
        }
        let mut all = true;
        for beside in [Beside::Nobody, Beside::Subscriber, Beside::Stalled] {
            let of = |whose| Costs::of(&costs[&(beside, whose)]);
            let (ours, resting, sglang) = (of(Whose::Ours), of(Whose::OursResting), of(Whose::Sglang));
            say(&format!(
                "  {:18} ours {ours}; with a rest before {resting}; SGLang's {sglang}",
                beside.name()
            ));
            for (name, cost) in [("", ours), (", with a rest before", resting)] {
                let (median, p99) = (cost.median, cost.p99);
                all &= bar(
                    median <= MEDIAN_NS,
                    &format!("least median at most {MEDIAN_NS} ns{name}: {median:.0}"),
                );
                all &= bar(p99 <= P99_NS, &format!("middle p99 at most {P99_NS} ns{name}: {p99:.0}"));
            }
            let times = sglang.median / ours.median;
            all &=
                bar(times >= CHEAPER, &format!("cheaper than SGLang's at least {CHEAPER} times: {times:.1}"));
        }
        Ok(all)
    }

    fn cost(&self, beside: Beside, whose: Whose) -> Result<Cost> {
        let path = self.dir.join("publish").display().to_string();
        let endpoint = format!("ipc://{path}");
        let filling = if beside == Beside::Stalled { FILLING } else { 0 }.to_string();
        let publish = ["publish", &endpoint, &filling, PASSES, INTERVAL_US];
        let mut publisher = match whose {
            Whose::Ours => Part::spawn(&self.bench, &[&publish[..], &["steady"]].concat())?,
            Whose::OursResting => Part::spawn(&self.bench, &[&publish[..], &["resting"]].concat())?,
            Whose::Sglang => Part::spawn(&self.sglang, &publish[1..])?,
        };
        publisher.line("bound")?;
        let mut subscriber = match beside {
            Beside::Nobody => None,
            Beside::Subscriber => Some(Part::spawn(&self.bench, &["hear", &endpoint])?),
            Beside::Stalled => Some(Part::spawn(&self.bench, &["stall", &path])?),
        };
        if let Some(subscriber) = &mut subscriber {
            subscriber.line("heard")?;
        }
        publisher.go_on()?;
        let line = publisher.line("median_ns")?;
        let cost = numbers(&line)?;
        ensure!(cost.get("dropped").is_none_or(|dropped| *dropped == 0.0), "passes were dropped: {line}");
        if let Some(stalled) = subscriber.as_mut().filter(|_| beside == Beside::Stalled) {
            stalled.go_on()?;
            let line = stalled.line("read")?;
            let read = numbers(&line)?["read"];
            ensure!(read < f64::from(FILLING), "the queue was not full before: {line}");
        }
        publisher.go_on()?;
        Ok(Cost { median: cost["median_ns"], p99: cost["p99_ns"] })
    }

    /// One subscriber and a thousand ranks.
    fn follow(&self) -> Result<bool> {
        say(&format!(
            "== follow: `rollscope fpm top` on one core, {RANKS} ranks of {MESSAGES_PER_S} messages/s, {} s",
            self.seconds
        ));
        let base = self.dir.join("ranks").display().to_string();
        let [count, rate, seconds] =
            [RANKS.into(), MESSAGES_PER_S.into(), self.seconds].map(|number: u64| number.to_string());
        let mut ranks = Part::spawn(&self.bench, &["ranks", &base, &count, &rate, &seconds])?;
        ranks.line("bound")?;
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(&self.rollscope);
        command.args(["fpm", "top", &format!("ipc://{base}")]);
        let screens = self.dir.join("screens.txt");
        let mut top = Process::spawn(&command, &screens)?;
        ranks.line("heard")?;
        // A buffer for each rank, as large as the longest moment that it was not read in: they are there by then.
        std::thread::sleep(Duration::from_secs(self.seconds) / 2);
        let (cpu_before, memory_before) = (top.cpu()?, top.resident_bytes()?);
        let between = Duration::from_secs(self.seconds) * 2 / 5;
        std::thread::sleep(between);
        let (cpu, memory) = (top.cpu()?.saturating_sub(cpu_before), top.resident_bytes()?);
        let line = ranks.line("sent")?;
        top.check_alive()?;
        // The last screen has all that was sent.
        std::thread::sleep(Duration::from_secs(3));
        top.stop()?;
        let Shown { rows, messages: heard, lost } = Shown::last(&std::fs::read_to_string(&screens)?)?;
        let numbers = numbers(&line)?;
        let rate = numbers["sent"] / self.seconds as f64;
        let share = cpu.as_secs_f64() / between.as_secs_f64();
        let growth = memory as f64 / memory_before as f64;
        let wanted = f64::from(RANKS * MESSAGES_PER_S);
        say(&format!("  {rate:.0} messages/s, {:.0}% of a core, {} MiB", share * 100.0, memory >> 20));
        let mut all = bar(rate >= wanted * 0.99, &format!("messages/s at least {wanted}: {rate:.0}"));
        all &= bar(rows == RANKS as usize, &format!("all ranks are shown: {rows}"));
        let not_there = numbers["dropped"] + lost as f64;
        all &= bar(not_there == 0.0, &format!("dropped or lost: {not_there}"));
        let (sent, heard) = (numbers["sent"], heard as f64);
        all &= bar((sent - heard).abs() < 0.5, &format!("messages heard: {heard} of {sent} sent"));
        let behind_ms = numbers["behind_ms"];
        all &= bar(behind_ms <= BEHIND_MS, &format!("behind at the end at most {BEHIND_MS} ms: {behind_ms}"));
        all &= bar(growth <= GROWTH, &format!("memory grows at most {GROWTH} times: {growth:.3}"));
        Ok(all)
    }
}

// === impl Shown ===

impl Shown {
    /// Of the last whole screen.
    fn last(screens: &str) -> Result<Self> {
        let whole = screens.rsplit_once("\n\n").map_or(screens, |(whole, _)| whole);
        let screen = whole.rsplit_once("\n\n").map_or(whole, |(_, last)| last);
        let mut shown = Self::default();
        for row in screen.lines().filter(|line| line.starts_with("bench dp")) {
            // The columns end with: messages, lost, restarts.
            let mut cells = row.split_whitespace().rev().skip(1);
            let mut number = || cells.next().and_then(|cell| cell.parse::<u64>().ok());
            let (lost, messages) =
                number().zip(number()).with_context(|| format!("no row of ranks: {row}"))?;
            shown.rows += 1;
            shown.lost += lost;
            shown.messages += messages;
        }
        Ok(shown)
    }
}

// === impl Costs ===

impl Costs {
    /// Of all rounds, of which there is one at least.
    fn of(rounds: &[Cost]) -> Self {
        let sorted = |of: fn(&Cost) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(of).collect();
            figures.sort_by(f64::total_cmp);
            figures
        };
        let ends = |figures: &[f64]| (figures[0], figures[figures.len() - 1]);
        let (medians, p99s) = (sorted(|cost| cost.median), sorted(|cost| cost.p99));
        Self { median: medians[0], medians: ends(&medians), p99: p99s[p99s.len() / 2], p99s: ends(&p99s) }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { medians: (least, most), p99, p99s: (least_p99, most_p99), .. } = self;
        write!(f, "medians {least:.0} to {most:.0} ns, p99 {p99:.0} ({least_p99:.0} to {most_p99:.0}) ns")
    }
}

// === impl Beside ===

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no subscriber",
            Self::Subscriber => "one subscriber",
            Self::Stalled => "a stalled one",
        }
    }
}

// === impl Part ===

impl Part {
    /// Starts a program with more arguments; it may open as many files as the machine allows.
    fn spawn(program: &Command, args: &[&str]) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"ulimit -n "$(ulimit -Hn)"; exec "$0" "$@""#]).arg(program.get_program());
        shell.args(program.get_args()).args(args);
        shell.current_dir(program.get_current_dir().unwrap_or(Path::new(".")));
        let mut child =
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start sh")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else { bail!("a process without pipes") };
        Ok(Self { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// The next line that begins so.
    fn line(&mut self, begin: &str) -> Result<String> {
        let mut line = String::new();
        while !line.starts_with(begin) {
            line.clear();
            ensure!(
                self.stdout.read_line(&mut line)? > 0,
                "a part of the benchmark has ended before: {begin}"
            );
        }
        Ok(line)
    }

    fn go_on(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"\n")?)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lucky_round_hides_no_tail() {
        let rounds = [(60.0, 900.0), (80.0, 500.0), (55.0, 2500.0)].map(|(median, p99)| Cost { median, p99 });
        let costs = Costs::of(&rounds);
        assert_eq!((costs.median, costs.p99), (55.0, 900.0));
        assert_eq!(costs.to_string(), "medians 55 to 80 ns, p99 900 (500 to 2500) ns");
    }

    #[test]
    fn the_last_whole_screen_is_read() {
        let screen = |lost: u64| {
            format!("rank  messages  lost  restarts\nbench dp0 x 7 {lost} 0\nbench dp1 x 4 2 0\n\n")
        };
        let screens = screen(9) + &screen(1) + "rank  lost  restarts\nbench dp0";
        assert_eq!(Shown::last(&screens).unwrap(), Shown { rows: 2, messages: 11, lost: 3 });
        assert_eq!(Shown::last("").unwrap(), Shown::default());
        assert_eq!(numbers("a 1 b 2.5\n").unwrap(), BTreeMap::from([("a", 1.0), ("b", 2.5)]));
        assert!(numbers("a 1 b").is_err() && numbers("a b").is_err());
    }
}
