//! `cargo xtask bench engine`: the embedded engine over a real checkpoint, beside llama.cpp.
//!
//! What is measured, and how, is told in `interop/engine_bench.py`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::host::build;
use crate::interop::checkpoint_script;
use crate::workspace::Workspace;

/// Runs what the arguments ask for; true if every bar is reached.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> Result<bool> {
    let (mut binary, mut rounds) = (None, 3_u32);
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("no value for option: {arg}"))?;
        match arg {
            "--binary" => binary = Some(PathBuf::from(value)),
            "--rounds" => {
                rounds = value
                    .parse()
                    .ok()
                    .filter(|rounds| *rounds > 0)
                    .context("--rounds wants a whole number")?;
            }
            _ => bail!("no such option: {arg}"),
        }
    }
    let binary = match binary {
        Some(binary) => {
            binary.canonicalize().with_context(|| format!("no such file: {}", binary.display()))?
        }
        None => build(&workspace.root, &["--package", "rollscope-cli", "--bin", "rollscope", "--release"])?,
    };
    let mut script = checkpoint_script(workspace, "engine_bench.py")?;
    script.env("ROLLSCOPE", binary).env("ROUNDS", rounds.to_string());
    Ok(script.status().context("cannot start Python")?.success())
}
