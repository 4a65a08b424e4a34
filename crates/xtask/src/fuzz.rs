//! Hostile payloads for the reader of forward passes, as many as one has time for.
//!
//! The cases are those of the test `hostile` of `rollscope-fpm`, which an ordinary run has few of. They are computed by optimized
//! code in which overflows are found; a case that breaks something is made as small as it goes, and told.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::workspace::Workspace;

/// Unless others are asked for.
const CASES: u32 = 1_000_000;

/// Whether all payloads were borne.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let cases = match args {
        [] => CASES,
        ["--cases", cases] => cases.parse().with_context(|| format!("not a number of cases: {cases}"))?,
        _ => bail!("only --cases N can be given"),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&workspace.root)
        .args(["test", "--package", "rollscope-fpm", "--test", "hostile", "--target-dir", "target/fuzz"])
        .args(["--", "--nocapture"])
        .envs([("CARGO_PROFILE_TEST_OPT_LEVEL", "3"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "3")])
        .envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "0")])
        .env("PROPTEST_CASES", cases.to_string())
        .status()
        .context("cannot run cargo test")?;
    Ok(status.success())
}
