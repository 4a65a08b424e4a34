//! Processes that the benchmark starts: what they cost, and their end by their own ids.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::host::output;

/// A process of ours. Dropping it ends it and its children.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    child: Child,
    /// What it prints.
    log: PathBuf,
}

/// What `/proc/PID/stat` says.
struct Stat {
    state: char,
    parent: u32,
    cpu: Duration,
}

/// A tick of `/proc`'s CPU times: Linux tells them to programs in hundredths of a second on every machine.
const TICK: Duration = Duration::from_millis(10);
/// What a process gets to end when it is asked to.
const GRACE: Duration = Duration::from_secs(30);

// === impl Process ===

impl Process {
    /// Starts a command that prints to a file. It may open as many files as the machine allows.
    pub(super) fn spawn(command: &Command, log: &Path) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"ulimit -n "$(ulimit -Hn)"; exec "$0" "$@""#]).arg(command.get_program());
        shell.args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = shell.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// What it has printed.
    pub(super) fn printed(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).with_context(|| format!("cannot read {}", self.log.display()))
    }

    /// Fails if it has ended, with what it said.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} has ended: {status}: {}", self.name, self.printed()?.trim());
        }
        Ok(())
    }

    /// CPU time, its children's included.
    pub(super) fn cpu(&self) -> Result<Duration> {
        self.family()?.into_iter().map(|id| Ok(Stat::read(&format!("/proc/{id}"))?.cpu)).sum()
    }

    /// CPU time of its own threads by name; names are cut to 15 bytes by the system.
    pub(super) fn cpu_by_thread(&self) -> Result<BTreeMap<String, Duration>> {
        let mut threads = BTreeMap::new();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            let name = std::fs::read_to_string(task.join("comm"))?.trim().to_owned();
            *threads.entry(name).or_default() += thread_cpu(&task)?;
        }
        Ok(threads)
    }

    /// Resident memory, its children's included.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        let mut total = 0;
        for id in self.family()? {
            let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            total += kib.with_context(|| format!("process {id} has no memory"))? << 10;
        }
        Ok(total)
    }

    /// Asks it to end, waits, and gives the CPU time of its whole life.
    pub(super) fn stop(mut self) -> Result<Duration> {
        let id = self.child.id();
        output(Command::new("kill").arg(id.to_string()))?;
        let asked = Instant::now();
        loop {
            let stat = Stat::read(&format!("/proc/{id}"))?;
            // Until we have waited for it, what it used can still be read.
            if stat.state == 'Z' {
                self.child.wait()?;
                return Ok(stat.cpu);
            }
            if asked.elapsed() > GRACE {
                bail!("{} does not end", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its id and its descendants'.
    pub(super) fn family(&self) -> Result<Vec<u32>> {
        let mut parents = BTreeMap::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // Processes end while we look.
            if let Ok(stat) = Stat::read(&format!("/proc/{id}")) {
                parents.insert(id, stat.parent);
            }
        }
        let mut family = vec![self.child.id()];
        let mut next = 0;
        while let Some(parent) = family.get(next).copied() {
            family.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(id, _)| *id));
            next += 1;
        }
        Ok(family)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Stopped first: it would start others in place of those that end, and they would be nobody's.
        drop(
            Command::new("kill").args(["-STOP", &self.child.id().to_string()]).stderr(Stdio::null()).status(),
        );
        let mut ids = self.family().unwrap_or_else(|_| vec![self.child.id()]);
        ids.reverse();
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        // Nobody is there any more to be told of a failure.
        drop(Command::new("kill").arg("-9").args(ids).stderr(Stdio::null()).status());
        drop(self.child.wait());
    }
}

/// CPU time of a thread to the nanosecond, where the kernel tells it; in ticks otherwise.
fn thread_cpu(task: &Path) -> Result<Duration> {
    let told = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    match told.split_whitespace().next().and_then(|used| used.parse().ok()) {
        Some(used_ns) => Ok(Duration::from_nanos(used_ns)),
        None => Ok(Stat::read(&task.display().to_string())?.cpu),
    }
}

// === impl Stat ===

impl Stat {
    /// Reads `stat` of a process's or a thread's folder.
    fn read(dir: &str) -> Result<Self> {
        let text = std::fs::read_to_string(format!("{dir}/stat"))?;
        Self::parse(&text).with_context(|| format!("cannot read {dir}/stat: {text}"))
    }

    fn parse(text: &str) -> Option<Self> {
        // The program's name stands in parentheses and may contain any of them.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse::<u32>().ok();
        // Fields 3, 4, 14 and 15 of proc_pid_stat(5), of which the first two are gone.
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            cpu: TICK * (number(11)? + number(12)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_last_parenthesis() {
        let text = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 120 30 9 9 20 0 1 0 1 1 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.cpu), ('S', 3, Duration::from_millis(1500)));
    }

    #[test]
    fn a_process_is_ended_with_its_children_and_tells_what_it_used() {
        let dir = std::env::temp_dir().join(format!("rollscope-bench-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & while :; do :; done"]);
        let process = Process::spawn(&command, &dir).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while process.family().unwrap().len() < 2 || process.cpu().unwrap().is_zero() {
            assert!(Instant::now() < deadline, "no child or no time used");
        }
        assert!(process.resident_bytes().unwrap() > 0);
        let child = process.family().unwrap()[1];
        drop(process);
        while Path::new(&format!("/proc/{child}")).exists() {
            assert!(Instant::now() < deadline, "the child still runs");
        }
        std::fs::remove_file(dir).unwrap();
    }
}
