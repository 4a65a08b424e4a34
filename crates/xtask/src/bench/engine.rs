//! `cargo xtask bench engine`: the embedded engine over a real checkpoint, beside llama.cpp.
//!
//! What is measured, and how, is told in `interop/engine_bench.py`.

use anyhow::{Context as _, Result};

use super::arguments::Arguments;
use crate::interop::checkpoint_script;
use crate::workspace::Workspace;

/// Runs what the arguments ask for; true if every bar is reached.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let Arguments { binary, rounds } = Arguments::parse(workspace, args)?;
    let mut script = checkpoint_script(workspace, "engine_bench.py")?;
    script.env("ROLLSCOPE", binary).env("ROUNDS", rounds.to_string());
    Ok(script.status().context("cannot start Python")?.success())
}
