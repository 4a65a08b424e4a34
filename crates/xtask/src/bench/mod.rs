//! `cargo xtask bench gateway`: the gateway against its peers, on one machine and before the same fake workers.
//!
//! What is compared are ratios. Machines differ and are shared, so the systems take turns (A B C A B C …), each ratio
//! is taken within a round, and the median of the rounds counts. CPU time is what the kernel charged to the process
//! and its children over the window, divided by the replies in it.

mod arguments;
mod case;
pub(crate) mod engine;
mod figure;
pub(crate) mod fpm;
mod http;
mod load;
mod process;
mod report;
mod share;
pub(crate) mod stats;
mod system;
mod tools;
pub(crate) mod viewer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::workspace::{Workspace, say, say_aside};
use case::{CASES, Case, Load};
use figure::Measured;
use load::Generator;
use report::Report;
use system::{Fleet, Running, System};
use tools::Tools;

/// What was asked for.
#[derive(Debug)]
struct Plan<'a> {
    cases: Vec<&'a Case>,
    /// Length of a window.
    seconds: u64,
    rounds: usize,
    binary: Option<PathBuf>,
}

/// How long a binary is exercised in each way.
const EXERCISE_S: u64 = 3;

/// Prints the cases.
pub(crate) fn list() -> bool {
    for case in CASES {
        say(&format!("{:17} {}", case.name, case.summary));
    }
    true
}

/// Runs what the arguments ask for; true if every bar is reached.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let plan = Plan::parse(args)?;
    let tools = Tools::new(&workspace.root, plan.binary.as_deref())?;
    let mut report = Report::default();
    for case in &plan.cases {
        say(&format!("== {}: {}", case.name, case.summary));
        let measured = measure(case, &tools, &plan).with_context(|| format!("case {}", case.name))?;
        report.add(case, &measured);
    }
    report.finish(&tools, &plan)
}

/// Has a binary serve, alone and for a moment, in each way that is measured by what it takes of the processor.
pub(crate) fn exercise(workspace: &Workspace, binary: &Path) -> Result<()> {
    let tools = Tools::without_peers(&workspace.root, Some(binary))?;
    for case in CASES.iter().filter(|case| matches!(case.load, Load::Closed | Load::Recording)) {
        let dir = tools.dir().join(case.name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let fleet = Fleet::start(case, &tools, &dir)?;
        let system = if case.load == Load::Recording { System::Recording } else { System::Rollscope };
        let mut running = system.start(case, &fleet, &tools, &dir)?;
        Generator::new(case, &tools, &fleet, &dir, EXERCISE_S)?.exercise(&running)?;
        // It is asked to end, for only then does it tell what it has counted.
        running.process.take().context("a gateway is a process")?.stop()?;
        say_aside(&format!("   {}", case.name));
    }
    Ok(())
}

/// All rounds of a case.
fn measure(case: &Case, tools: &Tools, plan: &Plan<'_>) -> Result<Measured> {
    let dir = tools.dir().join(case.name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let fleet = Fleet::start(case, tools, &dir)?;
    let generator = Generator::new(case, tools, &fleet, &dir, plan.seconds)?;
    let systems: Vec<System> = case.systems.iter().copied().filter(|system| tools.has(*system)).collect();
    let start = |system: System| system.start(case, &fleet, tools, &dir);
    let mut measured = Measured::default();
    if case.load == Load::Recording {
        for round in 1..=plan.rounds {
            let ready: Result<BTreeMap<System, Running>> =
                systems.iter().map(|system| Ok((*system, start(*system)?))).collect();
            let ready = ready?;
            let served = generator.serve_in_turns(&ready, &mut measured)?;
            for (system, running) in ready {
                let served = served.get(&system).copied().unwrap_or_default();
                measured.add(system, Generator::end_recording(running, served)?);
            }
            say_aside(&format!("   {} round {round} of {}", case.name, plan.rounds));
        }
        return Ok(measured);
    }
    let mut running: BTreeMap<System, Running> = BTreeMap::new();
    for round in 1..=plan.rounds {
        for system in &systems {
            let ready = match running.remove(system) {
                Some(ready) => ready,
                None => start(*system)?,
            };
            if round == 1 {
                generator.warm_up(&ready)?;
            }
            let (figures, still) =
                generator.measure(ready).with_context(|| format!("round {round} of {}", system.name()))?;
            measured.add(*system, figures);
            running.extend(still.map(|still| (*system, still)));
        }
        say_aside(&format!("   {} round {round} of {}", case.name, plan.rounds));
    }
    Ok(measured)
}

// === impl Plan ===

impl Plan<'_> {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut plan = Self { cases: Vec::new(), seconds: 3, rounds: 5, binary: None };
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            if !arg.starts_with("--") {
                let case = CASES.iter().find(|case| case.name == arg);
                plan.cases.push(case.with_context(|| format!("no such case (see --list): {arg}"))?);
                continue;
            }
            let value = args.next().with_context(|| format!("no value for option: {arg}"))?;
            let number = || value.parse().ok().filter(|number| *number > 0);
            match arg {
                "--seconds" => plan.seconds = number().context("--seconds wants a whole number")?,
                "--rounds" => plan.rounds = number().context("--rounds wants a whole number")? as usize,
                "--binary" => plan.binary = Some(PathBuf::from(value)),
                _ => bail!("no such option: {arg}"),
            }
        }
        if plan.cases.is_empty() {
            plan.cases = CASES.iter().collect();
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_refused() {
        for (args, expected) in [
            ("", Ok((CASES.len(), 3, 5))),
            ("pd sse --seconds 1 --rounds 2", Ok((2, 1, 2))),
            ("--seconds 0", Err("--seconds wants a whole number")),
            ("--rounds", Err("no value for option: --rounds")),
            ("nothing", Err("no such case (see --list): nothing")),
            ("--fast 1", Err("no such option: --fast")),
        ] {
            let args: Vec<&str> = args.split_whitespace().collect();
            let plan = Plan::parse(&args).map(|plan| (plan.cases.len(), plan.seconds, plan.rounds));
            assert_eq!(plan.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{args:?}");
        }
    }
}
