//! `cargo xtask bench viewer`: the page over large runs, in headless Chromium.
//!
//! The runs are made by the example `make_run` of `rollscope-view`, the same each time. What is measured, and how, is
//! told in `interop/viewer_bench.mjs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::arguments::Arguments;
use crate::host::{build, output, target_dir};
use crate::interop::browser_script;
use crate::workspace::{Workspace, say};

/// A run, and what the page may take over it.
struct Case {
    name: &'static str,
    samples: u32,
    turns: u32,
    workers: u32,
    first_paint_ms: u32,
    keystroke_ms: u32,
    memory_mb: u32,
}

const CASES: &[Case] = &[
    Case {
        name: "820,000 events",
        samples: 16_384,
        turns: 2,
        workers: 16,
        first_paint_ms: 700,
        keystroke_ms: 100,
        memory_mb: 200,
    },
    Case {
        name: "1,000,000 spans, 64 workers",
        samples: 20_000,
        turns: 4,
        workers: 64,
        first_paint_ms: 1000,
        keystroke_ms: 150,
        memory_mb: 300,
    },
];

/// From the command to the first rows of a foreign file.
const DUMP_FIRST_PAINT_MS: u32 = 2000;

/// Runs what the arguments ask for; true if every bar is reached.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let Arguments { binary, rounds } = Arguments::parse(workspace, args)?;
    let dir = target_dir(&workspace.root, "bench")?.join("viewer");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let cases = CASES.iter().map(|case| {
        let run = dir.join(case.folder());
        if !run.join("run.json").exists() {
            say(&format!("making a run: {}", case.name));
            make(workspace, case, &run)?;
        }
        let bars = json!({
            "first_paint_ms": case.first_paint_ms,
            "frame_ms": 16,
            "filter_ms": case.keystroke_ms,
            "search_ms": case.keystroke_ms,
            "memory_mb": case.memory_mb,
        });
        Ok(json!({"name": case.name, "run": run, "samples": case.samples, "bars": bars}))
    });
    let mut cases: Vec<_> = cases.collect::<Result<_>>()?;
    let dump = dump(workspace, &binary, &dir.join(CASES[0].folder()))?;
    let bars = json!({"first_paint_ms": DUMP_FIRST_PAINT_MS});
    let samples = CASES[0].samples;
    cases.push(json!({"name": "820,000 events in a .pt", "run": dump, "samples": samples, "bars": bars}));
    let mut script = browser_script(workspace, "viewer_bench.mjs")?;
    script.env("ROLLSCOPE", binary).env("CASES", json!(cases).to_string());
    let status = script.env("ROUNDS", rounds.to_string()).status().context("cannot start node")?;
    Ok(status.success())
}

/// The dump of the first case, made where there is none.
pub(super) fn dump_of_820_000_events(workspace: &Workspace) -> Result<PathBuf> {
    let dir = target_dir(&workspace.root, "bench")?.join("viewer");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let run = dir.join(CASES[0].folder());
    if !run.join("run.json").exists() {
        make(workspace, &CASES[0], &run)?;
    }
    if run.with_extension("pt").exists() {
        return Ok(run.with_extension("pt"));
    }
    let binary = build(&workspace.root, &["--package", "rollscope-cli", "--bin", "rollscope", "--release"])?;
    dump(workspace, &binary, &run)
}

/// The same run as slime would have dumped it.
fn dump(workspace: &Workspace, binary: &Path, run: &Path) -> Result<PathBuf> {
    let file = run.with_extension("pt");
    if file.exists() {
        return Ok(file);
    }
    say("making a dump");
    let (json, part) = (run.with_extension("json"), run.with_extension("pt.part"));
    output(Command::new(binary).arg("export").arg(run).args(["--to", "slime-json"]).arg(&json))?;
    let script = workspace.root.join("interop/torch_dump.py");
    output(Command::new("python3").arg(script).args([&json, &part]))?;
    std::fs::remove_file(&json).with_context(|| format!("cannot remove {}", json.display()))?;
    std::fs::rename(&part, &file).with_context(|| format!("cannot rename {}", part.display()))?;
    Ok(file)
}

/// Writes a run, under another name until it is whole.
fn make(workspace: &Workspace, case: &Case, run: &Path) -> Result<()> {
    let options = ["--package", "rollscope-view", "--example", "make_run", "--release"];
    let maker = build(&workspace.root, &options)?;
    let made = run.with_extension("part");
    if made.exists() {
        std::fs::remove_dir_all(&made)?;
    }
    let numbers = [case.samples, case.turns, case.workers].map(|number| number.to_string());
    output(Command::new(maker).arg(&made).args(numbers))?;
    std::fs::rename(&made, run).with_context(|| format!("cannot rename {}", made.display()))
}

// === impl Case ===

impl Case {
    fn folder(&self) -> String {
        format!("{}-{}-{}", self.samples, self.turns, self.workers)
    }
}
