//! `--binary PATH` and `--rounds N`, as several benchmarks take them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::host::build;
use crate::workspace::Workspace;

/// What a benchmark of the program is asked for.
pub(super) struct Arguments {
    /// The program, built if none was named.
    pub(super) binary: PathBuf,
    /// 1 at least.
    pub(super) rounds: u32,
}

// === impl Arguments ===

impl Arguments {
    pub(super) fn parse(workspace: &Workspace, args: &[&str]) -> Result<Self> {
        let (mut binary, mut rounds) = (None, 3);
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            let value = args.next().with_context(|| format!("no value for option: {arg}"))?;
            match arg {
                "--binary" => {
                    let path = PathBuf::from(value);
                    binary = Some(path.canonicalize().with_context(|| format!("no such file: {value}"))?);
                }
                "--rounds" => {
                    let number = value.parse().ok().filter(|rounds| *rounds > 0);
                    rounds = number.context("--rounds wants a whole number, 1 at least")?;
                }
                _ => bail!("no such option: {arg}"),
            }
        }
        let release =
            || build(&workspace.root, &["--package", "rollscope-cli", "--bin", "rollscope", "--release"]);
        Ok(Self { binary: binary.map_or_else(release, Ok)?, rounds })
    }
}
