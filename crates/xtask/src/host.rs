//! Programs of this machine: finding, running and, where we may, installing them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::workspace::say_aside;

/// The operating system's packages, if it is a Debian.
#[derive(Debug, Default)]
pub(crate) struct Packages {
    is_updated: bool,
}

// === impl Packages ===

impl Packages {
    /// Installs packages if we are root; says what is missing if not.
    pub(crate) fn install(&mut self, packages: &[&str]) -> Result<()> {
        let missing = packages.join(" ");
        let is_root = output(Command::new("id").arg("-u"))?.trim() == "0";
        if !is_root || which("apt-get").is_none() {
            bail!("missing and to be installed by hand: {missing}");
        }
        say_aside(&format!("installing {missing}"));
        if !self.is_updated {
            output(Command::new("apt-get").args(["--quiet", "update"]))?;
            self.is_updated = true;
        }
        output(
            Command::new("apt-get")
                .args(["--quiet", "--yes", "--no-install-recommends", "install"])
                .args(packages)
                // At level 1 no service is started: what is installed is for us to run.
                .envs([("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1")]),
        )?;
        Ok(())
    }

    /// The interpreter of an environment of Python's packages, which is made if there is none.
    pub(crate) fn python(&mut self, environment: &Path) -> Result<PathBuf> {
        let python = environment.join("bin/python");
        if python.exists() {
            return Ok(python);
        }
        if which("python3").is_none() {
            self.install(&["python3", "python3-venv"])?;
        }
        let mut create = Command::new("python3");
        create.args(["-m", "venv", "--clear"]).arg(environment);
        if output(&mut create).is_err() {
            // Debian's Python comes without what a new environment's pip is made from.
            self.install(&["python3-venv"])?;
            output(&mut create)?;
        }
        Ok(python)
    }
}

/// Installs packages into an environment of Python's; `what` is as for pip.
pub(crate) fn pip_install(python: &Path, what: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(what);
    output(&mut pip).map(drop)
}

/// The folder of a chore under `target`.
pub(crate) fn target_dir(root: &Path, chore: &str) -> Result<PathBuf> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let dir = target.join(chore);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// Builds a program of ours with these options of `cargo build`; gives its path.
pub(crate) fn build(root: &Path, options: &[&str]) -> Result<PathBuf> {
    build_with(root, options, &[])
}

/// The same in another environment.
pub(crate) fn build_with(root: &Path, options: &[&str], variables: &[(&str, &str)]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let messages = output(
        Command::new(cargo)
            .args(["build", "--quiet", "--message-format", "json-render-diagnostics"])
            .args(options)
            .envs(variables.iter().copied())
            .current_dir(root),
    )?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo build names no executable")
}

/// Where a program is found, if anywhere. Programs of the administrator count.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    dirs.map(|dir| dir.join(program)).find(|candidate| Path::is_file(candidate))
}

/// What a command prints, if it succeeds; otherwise what it complains of.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
