//! Checks against other projects' programs: a Python client, a browser, a query engine.
//!
//! Each check is a script in `interop/` that starts the real `rollscope`, talks to it as its users' programs do, and
//! ends with 0 or says what was wrong. The frame brings what the scripts need, and counts.

mod tools;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::host::output;
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
    needs: &'static [Need],
    /// Runs only when it is named: it downloads more than all the others together, or needs what only a person has.
    on_demand: bool,
}

/// A file of `interop/`, and what runs it.
#[derive(Clone, Copy)]
enum Script {
    /// With the packages of `interop/requirements.txt`.
    Python(&'static str),
    /// With the packages of `interop/requirements-dynamo.txt`, an environment of their own.
    Dynamo(&'static str),
    /// With the packages of `interop/requirements-checkpoint.txt`, likewise.
    Checkpoint(&'static str),
    /// With the packages of `interop/package.json`, whose folder is in `NODE_PACKAGES`.
    Node(&'static str),
}

/// What a script finds in the environment.
#[derive(Clone, Copy)]
enum Need {
    /// `ROLLSCOPE`: the binary.
    Binary,
    /// `RUN`: the directory of a run that `rollscope demo` has recorded.
    Run,
    /// `LARGE_RUN`: the directory of a run with ten million spans in a step.
    LargeRun,
    /// `CHROMIUM`: the browser.
    Chromium,
}

const CHECKS: &[Check] = &[
    Check {
        name: "python-client",
        summary: "slime's calls through the gateway, by httpx",
        script: Script::Python("python_client.py"),
        needs: &[Need::Binary],
        on_demand: false,
    },
    Check {
        name: "figures",
        summary: "the gateway's figures read by Prometheus' Python client",
        script: Script::Python("figures.py"),
        needs: &[Need::Binary],
        on_demand: false,
    },
    Check {
        name: "openai-client",
        summary: "the openai package through the gateway",
        script: Script::Python("openai_client.py"),
        needs: &[Need::Binary],
        on_demand: false,
    },
    Check {
        name: "sglang-client",
        summary: "SGLang's way of calling a server, through the gateway",
        script: Script::Python("sglang_client.py"),
        needs: &[Need::Binary],
        on_demand: false,
    },
    Check {
        name: "page",
        summary: "the page's types by TypeScript, its units by Node",
        script: Script::Node("page.mjs"),
        needs: &[],
        on_demand: false,
    },
    Check {
        name: "viewer",
        summary: "the timeline page in headless Chromium",
        script: Script::Node("viewer.mjs"),
        needs: &[Need::Binary, Need::Run, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-marks",
        summary: "what the page draws besides bars, by its pixels, and what it says of a step that is too large",
        script: Script::Node("viewer_marks.mjs"),
        needs: &[Need::Binary, Need::Run, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-signs",
        summary: "what is not plain, the strips of forward passes and the colours, by their pixels",
        script: Script::Node("viewer_signs.mjs"),
        needs: &[Need::Binary, Need::Run, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-live",
        summary: "the page beside a run that is being written, and over hostile texts",
        script: Script::Node("viewer_live.mjs"),
        needs: &[Need::Binary, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-demo",
        summary: "the page beside a demo that is at work",
        script: Script::Node("viewer_demo.mjs"),
        needs: &[Need::Binary, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-texts",
        summary: "what a client and a pair said, by --record-text, as a conversation on the page",
        script: Script::Node("viewer_texts.mjs"),
        needs: &[Need::Binary, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-hostile",
        summary: "files that mean harm or are broken, in headless Chromium",
        script: Script::Node("viewer_hostile.mjs"),
        needs: &[Need::Binary, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "viewer-large",
        summary: "ten million spans, and an attribute of a gigabyte (5 GB on disk; only by name)",
        script: Script::Node("viewer_large.mjs"),
        needs: &[Need::Binary, Need::LargeRun, Need::Chromium],
        on_demand: true,
    },
    Check {
        name: "viewer-screens",
        summary: "the page at three sizes, light and dark, against pictures of it",
        script: Script::Node("viewer_screens.mjs"),
        needs: &[Need::Binary, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "html",
        summary: "the exported page in headless Chromium, from disk",
        script: Script::Node("html.mjs"),
        needs: &[Need::Binary, Need::Run, Need::Chromium],
        on_demand: false,
    },
    Check {
        name: "formats",
        summary: "exports read by Perfetto's and OpenTelemetry's own messages",
        script: Script::Python("formats.py"),
        needs: &[Need::Binary, Need::Run],
        on_demand: false,
    },
    Check {
        name: "slime-numbers",
        summary: "a step's numbers against slime's formulas over the same dump, by numpy",
        script: Script::Python("slime_numbers.py"),
        needs: &[Need::Binary, Need::Run],
        on_demand: false,
    },
    Check {
        name: "slime",
        summary: "a step's numbers against slime's own module, of a checkout at SLIME_SOURCE (only by name)",
        script: Script::Python("slime_itself.py"),
        needs: &[Need::Binary],
        on_demand: true,
    },
    Check {
        name: "trackers",
        summary: "a run's numbers read back by W&B, TensorBoard and MLflow, and sent by W&B's sync to a backend here",
        script: Script::Python("trackers.py"),
        needs: &[Need::Binary, Need::Run],
        on_demand: false,
    },
    Check {
        name: "forward-passes",
        summary: "forward-pass metrics to and from SGLang's and Dynamo's code, by libzmq",
        script: Script::Python("forward_pass_metrics.py"),
        needs: &[Need::Binary],
        on_demand: false,
    },
    Check {
        name: "dynamo",
        summary: "Dynamo's relay, subscriber, recorder and planner (600 MB; only by name)",
        script: Script::Dynamo("dynamo_planner.py"),
        needs: &[Need::Binary],
        on_demand: true,
    },
    Check {
        name: "parquet",
        summary: "a run's tables read by the guide's recipes for DuckDB and Polars",
        script: Script::Python("parquet.py"),
        needs: &[Need::Binary, Need::Run],
        on_demand: false,
    },
    Check {
        name: "checkpoint",
        summary: "real and random checkpoints of all types against llama.cpp (100 MB; only by name)",
        script: Script::Checkpoint("checkpoint.py"),
        needs: &[Need::Binary],
        on_demand: true,
    },
];

/// A script of `interop/` that looks at a browser, with what it finds in the environment.
pub(crate) fn browser_script(workspace: &Workspace, script: &str) -> Result<Command> {
    let mut tools = Tools::new(&workspace.root)?;
    let mut command = Command::new("node");
    command.arg(tools.scripts().join(script));
    command.env("NODE_PACKAGES", tools.node_packages()?).env("CHROMIUM", tools.chromium()?);
    Ok(command)
}

/// A script of `interop/`, by the interpreter that has the packages of `interop/requirements.txt`.
pub(crate) fn python_script(workspace: &Workspace, script: &str) -> Result<Command> {
    in_environment(workspace, script, Tools::python)
}

/// The same with the packages of `interop/requirements-checkpoint.txt`.
pub(crate) fn checkpoint_script(workspace: &Workspace, script: &str) -> Result<Command> {
    in_environment(workspace, script, Tools::checkpoint_python)
}

fn in_environment(
    workspace: &Workspace,
    script: &str,
    interpreter: fn(&mut Tools) -> Result<PathBuf>,
) -> Result<Command> {
    let mut tools = Tools::new(&workspace.root)?;
    let mut command = python(&interpreter(&mut tools)?, &tools.scripts().join(script));
    command.current_dir(tools.fresh_dir(script)?);
    Ok(command)
}

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
    let is_wanted =
        |check: &&Check| if names.is_empty() { !check.on_demand } else { names.contains(&check.name) };
    for check in CHECKS.iter().filter(is_wanted) {
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
        let mut command = match self.script {
            Script::Python(file) => python(&tools.python()?, &tools.scripts().join(file)),
            Script::Dynamo(file) => python(&tools.dynamo_python()?, &tools.scripts().join(file)),
            Script::Checkpoint(file) => python(&tools.checkpoint_python()?, &tools.scripts().join(file)),
            Script::Node(file) => {
                let packages = tools.node_packages()?;
                let mut command = Command::new("node");
                command.arg(tools.scripts().join(file)).env("NODE_PACKAGES", packages);
                command
            }
        };
        for need in self.needs {
            match need {
                Need::Binary => command.env("ROLLSCOPE", tools.rollscope()?),
                Need::Run => command.env("RUN", tools.recorded_run()?),
                Need::LargeRun => command.env("LARGE_RUN", tools.large_run()?),
                Need::Chromium => command.env("CHROMIUM", tools.chromium()?),
            };
        }
        command.current_dir(tools.fresh_dir(self.name)?);
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let status = wait(&mut child, DEADLINE)?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    }
}

fn python(interpreter: &Path, script: &Path) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(script).env("PYTHONUNBUFFERED", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Waits for a check to end. One that hangs is asked to end first, so that it can stop what it started.
fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    if let Some(status) = poll(child, deadline)? {
        return Ok(status);
    }
    output(Command::new("kill").arg(child.id().to_string()))?;
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
