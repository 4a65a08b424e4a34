//! Hostile input for what reads foreign or broken bytes, as much as one has time for.
//!
//! The cases are those of property tests, which an ordinary run has few of. They are computed by optimized code in which overflows
//! are found; a case that breaks something is made as small as it goes, and told.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::workspace::{Workspace, say};

/// A reader, and the tests that make up its input.
struct Target {
    what: &'static str,
    package: &'static str,
    /// Which of the package's test programs, and which of its tests: those whose name has the text in it.
    tests: &'static [&'static str],
    /// Cases of each test, unless others are asked for.
    cases: u32,
}

const TARGETS: &[Target] = &[
    Target {
        what: "forward passes",
        package: "rollscope-fpm",
        tests: &["--test", "hostile", "--"],
        cases: 1_000_000,
    },
    Target {
        what: "pickles",
        package: "rollscope-formats",
        tests: &["--lib", "--", "or_refused"],
        cases: 1_000_000,
    },
    // Each case is a file that is written.
    Target {
        what: "logs of a run",
        package: "rollscope-run",
        tests: &["--test", "run", "--", "a_log_of_any_bytes"],
        cases: 100_000,
    },
];

/// Whether all input was borne.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let asked = match args {
        [] => None,
        ["--cases", cases] => {
            Some(cases.parse::<u32>().with_context(|| format!("not a number of cases: {cases}"))?)
        }
        _ => bail!("only --cases N can be given"),
    };
    let mut borne = true;
    for target in TARGETS {
        let cases = asked.unwrap_or(target.cases);
        say(&format!("== {}: {cases} cases of each test", target.what));
        borne &= target.run(workspace, cases)?;
    }
    Ok(borne)
}

// === impl Target ===

impl Target {
    fn run(&self, workspace: &Workspace, cases: u32) -> Result<bool> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .current_dir(&workspace.root)
            .args(["test", "--package", self.package, "--target-dir", "target/fuzz"])
            .args(self.tests)
            .arg("--nocapture")
            .envs([("CARGO_PROFILE_TEST_OPT_LEVEL", "3"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "3")])
            .envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "0")])
            .env("PROPTEST_CASES", cases.to_string())
            .status()
            .context("cannot run cargo test")?;
        Ok(status.success())
    }
}
