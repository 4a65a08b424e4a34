//! A small share of the processor for one system, by a control group of Linux: where the machine is full, requests a
//! second say how fast the load generator and the workers are, and not who stands between.
//!
//! Both versions of control groups are known. Who may not write them is told so, and measures without.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// A group of processes that together get no more than [`SHARE`] of one processor, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    dir: PathBuf,
}

/// Of one processor: generator and workers keep up with the fastest of the systems by what is left of two.
pub(super) const SHARE: f64 = 0.15;
/// Long enough for a system's threads to work side by side, short enough for many in a window.
const PERIOD_US: u64 = 50_000;
const QUOTA_US: u64 = (PERIOD_US as f64 * SHARE) as u64;
/// Where groups are made that have a limit of processor time, version 2 before version 1.
const PARENTS: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"];
/// Processes that were killed are gone by then.
const END_LIMIT: Duration = Duration::from_secs(10);

// === impl Share ===

impl Share {
    /// Holds processes to the share from now on, and those that they start. Nothing where there are no control groups that
    /// limit processor time, or not for us.
    pub(super) fn hold(name: &str, processes: &[u32]) -> Result<Option<Self>> {
        let Some(parent) = PARENTS.iter().map(Path::new).find(|parent| can_limit(parent)) else {
            return Ok(None);
        };
        let dir = parent.join(format!("rollscope-bench-{}-{name}", std::process::id()));
        match fs::create_dir(&dir) {
            Err(error) if is_forbidden(&error) => return Ok(None),
            created => created.with_context(|| format!("cannot create {}", dir.display()))?,
        }
        let share = Self { dir };
        // Before all others it gets what it may have, so that it is the limit on a busy machine too.
        if share.dir.join("cpu.max").exists() {
            share.write("cpu.max", &format!("{QUOTA_US} {PERIOD_US}"))?;
            share.write("cpu.weight", "10000")?;
        } else {
            share.write("cpu.shares", "262144")?;
            share.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            share.write("cpu.cfs_quota_us", &QUOTA_US.to_string())?;
        }
        let mut is_held = false;
        for process in processes {
            let written = share.write("cgroup.procs", &process.to_string());
            let has_ended = written.is_err() && !Path::new(&format!("/proc/{process}")).exists();
            if !has_ended {
                is_held |= written.map(|()| true)?;
            }
        }
        ensure!(is_held, "nothing to hold");
        Ok(Some(share))
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Who still lives is held no longer.
        for process in fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default().lines() {
            fs::write(self.dir.with_file_name("cgroup.procs"), process).ok();
        }
        let begin = Instant::now();
        while let Err(error) = fs::remove_dir(&self.dir)
            && error.kind() == io::ErrorKind::ResourceBusy
            && begin.elapsed() < END_LIMIT
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Whether groups in this one can be limited. In version 2 that has to be asked for.
fn can_limit(parent: &Path) -> bool {
    match fs::read_to_string(parent.join("cgroup.controllers")) {
        Ok(controllers) => {
            controllers.split_whitespace().any(|controller| controller == "cpu")
                && fs::write(parent.join("cgroup.subtree_control"), "+cpu").is_ok()
        }
        Err(_) => parent.join("cpu.shares").exists(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::process::Process;
    use super::*;

    #[test]
    fn who_is_held_has_a_limit_and_no_group_is_left() {
        let log = std::env::temp_dir().join(format!("rollscope-share-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & wait"]);
        let process = Process::spawn(&command, &log).unwrap();
        let ids = process.family().unwrap();
        // A machine may have no control groups, or not for us: then there is nothing to test.
        if let Some(share) = Share::hold("test", &ids).unwrap() {
            let dir = share.dir.clone();
            let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
            assert!(read("cgroup.procs").lines().any(|id| id == ids[0].to_string()));
            assert!([read("cpu.max"), read("cpu.cfs_quota_us")].concat().starts_with(&QUOTA_US.to_string()));
            drop(process);
            drop(share);
            assert!(!dir.exists());
        }
        fs::remove_file(log).unwrap();
    }
}
