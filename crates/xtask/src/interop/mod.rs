//! Checks against other projects' programs: a Python client, a browser, a query engine.
//!
//! Each check is a script in `interop/` that starts the real `rollscope`, talks to it as its users' programs do, and
//! ends with 0 or says what was wrong. The frame brings what the scripts need and counts. A script finds the binary in
//! the environment as `ROLLSCOPE`, and in `RUN` the directory of a run that `rollscope demo` has recorded.

mod tools;

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::workspace::{Workspace, say};
use tools::Tools;

/// Beyond this a check hangs.
const DEADLINE: Duration = Duration::from_mins(10);
/// What a check that hangs gets to stop the processes that it started.
const GRACE: Duration = Duration::from_secs(20);

struct Check {
    name: &'static str,
    summary: &'static str,
    script: Script,
    /// Whether it reads a recorded run.
    reads_run: bool,
}

/// A file of `interop/`, and what runs it.
enum Script {
    /// With the packages of `interop/requirements.txt`.
    Python(&'static str),
    /// With the packages of `interop/package.json`, and Chromium.
    Browser(&'static str),
}

const CHECKS: &[Check] = &[
    Check {
        name: "python-client",
        summary: "slime's calls through the gateway, by httpx",
        script: Script::Python("python_client.py"),
        reads_run: false,
    },
    Check {
        name: "viewer",
        summary: "the timeline page in headless Chromium",
        script: Script::Browser("viewer.mjs"),
        reads_run: true,
    },
    Check {
        name: "parquet",
        summary: "a run's tables read by DuckDB",
        script: Script::Python("parquet.py"),
        reads_run: true,
    },
];

/// Prints the checks.
pub(crate) fn list() -> bool {
    for check in CHECKS {
        say(&format!("{:14} {}", check.name, check.summary));
    }
    true
}

/// Runs the named checks, or all; true if all passed.
pub(crate) fn run(workspace: &Workspace, names: &[&str]) -> Result<bool> {
    if let Some(unknown) = names.iter().find(|name| !CHECKS.iter().any(|check| check.name == **name)) {
        bail!("no such check (see --list): {unknown}");
    }
    let mut tools = Tools::new(&workspace.root)?;
    let (mut passed, mut failed) = (0, 0);
    for check in CHECKS.iter().filter(|check| names.is_empty() || names.contains(&check.name)) {
        say(&format!("== {}: {}", check.name, check.summary));
        let started = Instant::now();
        let outcome = check.run(&mut tools);
        let took_s = started.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                passed += 1;
                say(&format!("ok {} ({took_s:.1} s)\n", check.name));
            }
            Err(error) => {
                failed += 1;
                say(&format!("FAILED {} ({took_s:.1} s): {error:#}\n", check.name));
            }
        }
    }
    say(&format!("{passed} passed, {failed} failed"));
    Ok(failed == 0)
}

// === impl Check ===

impl Check {
    fn run(&self, tools: &mut Tools) -> Result<()> {
        let rollscope = tools.rollscope()?;
        let scripts = tools.scripts();
        let mut command = match self.script {
            Script::Python(file) => {
                let mut command = Command::new(tools.python()?);
                command.arg(scripts.join(file));
                command
            }
            Script::Browser(file) => {
                let mut command = Command::new("node");
                command.env("NODE_PACKAGES", tools.node_packages()?).env("CHROMIUM", tools.chromium()?);
                command.arg(scripts.join(file));
                command
            }
        };
        if self.reads_run {
            command.env("RUN", tools.recorded_run()?);
        }
        command.env("ROLLSCOPE", rollscope).env("PYTHONUNBUFFERED", "1");
        command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(tools.fresh_dir(self.name)?);
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let status = wait(&mut child, DEADLINE)?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    }
}

/// Waits for a check to end. One that hangs is asked to end first, so that it can stop what it started.
fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    if let Some(status) = poll(child, deadline)? {
        return Ok(status);
    }
    tools::output(Command::new("kill").arg(child.id().to_string()))?;
    if poll(child, GRACE)?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    bail!("no end after {} s", deadline.as_secs())
}

fn poll(child: &mut Child, deadline: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > deadline {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where a program is found, if anywhere.
fn which(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|candidate| Path::is_file(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_hangs_is_ended() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let error = wait(&mut child, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.to_string(), "no end after 0 s");
        assert!(child.try_wait().unwrap().is_some(), "still running");
    }

    #[test]
    fn check_names_are_distinct() {
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }
}
