//! What the checks need, made when first asked for: the `rollscope` binary, a Python environment, a browser.
//!
//! All of it lives under `target/interop`, but for programs of the operating system: those are installed only where
//! they are missing and we may.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::host::{Packages, build, output, pip_install, target_dir, which};

pub(super) struct Tools {
    root: PathBuf,
    /// `target/interop`.
    dir: PathBuf,
    rollscope: Option<PathBuf>,
    recorded_run: Option<PathBuf>,
    packages: Packages,
}

// === impl Tools ===

impl Tools {
    pub(super) fn new(root: &Path) -> Result<Self> {
        let dir = target_dir(root, "interop")?;
        Ok(Self {
            root: root.to_owned(),
            dir,
            rollscope: None,
            recorded_run: None,
            packages: Packages::default(),
        })
    }

    /// The folder of the checks' scripts.
    pub(super) fn scripts(&self) -> PathBuf {
        self.root.join("interop")
    }

    /// An empty folder for a check to run in; what it leaves there stays until its next run.
    pub(super) fn fresh_dir(&self, check: &str) -> Result<PathBuf> {
        let dir = self.dir.join("work").join(check);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir)
    }

    /// The binary under test, in the profile that `ROLLSCOPE_INTEROP_PROFILE` names (default `dev`).
    pub(super) fn rollscope(&mut self) -> Result<PathBuf> {
        if let Some(binary) = &self.rollscope {
            return Ok(binary.clone());
        }
        let profile = std::env::var("ROLLSCOPE_INTEROP_PROFILE").unwrap_or_else(|_| "dev".to_owned());
        let options = ["--package", "rollscope-cli", "--bin", "rollscope", "--profile", &profile];
        let binary = build(&self.root, &options)?;
        self.rollscope = Some(binary.clone());
        Ok(binary)
    }

    /// The directory of a run of one step, recorded by the demo.
    pub(super) fn recorded_run(&mut self) -> Result<PathBuf> {
        if let Some(run) = &self.recorded_run {
            return Ok(run.clone());
        }
        let run = self.fresh_dir("demo")?.join("run");
        output(Command::new(self.rollscope()?).args(["demo", "--steps", "1", "--out"]).arg(&run))?;
        self.recorded_run = Some(run.clone());
        Ok(run)
    }

    /// The directory of a run with ten million spans in a step.
    pub(super) fn large_run(&self) -> Result<PathBuf> {
        let example = ["--package", "rollscope-view", "--example", "make_run", "--release"];
        let maker = build(&self.root, &example)?;
        let run = self.fresh_dir("large")?.join("run");
        output(Command::new(maker).arg(&run).args(["200000", "4", "64"]))?;
        Ok(run)
    }

    /// The interpreter of an environment with the packages of `interop/requirements.txt`.
    pub(super) fn python(&mut self) -> Result<PathBuf> {
        self.environment("venv", "requirements.txt", &[])
    }

    /// The interpreter of an environment with the packages of `interop/requirements-dynamo.txt`, without what those would
    /// bring along: a list that is whole.
    pub(super) fn dynamo_python(&mut self) -> Result<PathBuf> {
        self.environment("venv-dynamo", "requirements-dynamo.txt", &["--no-deps"])
    }

    /// An environment of that name, made anew when the list of its packages changes.
    fn environment(&mut self, name: &str, requirements: &str, options: &[&str]) -> Result<PathBuf> {
        let requirements = self.scripts().join(requirements);
        let wanted = read(&requirements)?;
        let venv = self.dir.join(name);
        let python = venv.join("bin/python");
        let stamp = venv.join("installed.txt");
        if python.exists() && std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(python);
        }
        if venv.exists() {
            std::fs::remove_dir_all(&venv).with_context(|| format!("cannot remove {}", venv.display()))?;
        }
        let python = self.packages.python(&venv)?;
        let options = options.iter().map(OsStr::new);
        let list = [OsStr::new("--requirement"), requirements.as_os_str()];
        pip_install(&python, options.chain(list))?;
        write(&stamp, &wanted)?;
        Ok(python)
    }

    /// The interpreter of an environment with the packages of `interop/requirements-checkpoint.txt`, which is whole too: a real
    /// checkpoint and another program that reads it.
    pub(super) fn checkpoint_python(&mut self) -> Result<PathBuf> {
        self.environment("venv-checkpoint", "requirements-checkpoint.txt", &["--no-deps"])
    }

    /// The folder in which the packages of `interop/package.json` are installed.
    pub(super) fn node_packages(&mut self) -> Result<PathBuf> {
        let wanted = read(&self.scripts().join("package.json"))?;
        let dir = self.dir.join("node");
        let stamp = dir.join("installed.json");
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(dir);
        }
        if which("node").is_none() {
            self.packages.install(&["nodejs"])?;
        }
        // Some packages of Node bring npm and refuse Debian's beside them, so this is known only now.
        if which("npm").is_none() {
            self.packages.install(&["npm"])?;
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        write(&dir.join("package.json"), &wanted)?;
        output(
            Command::new("npm")
                .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"])
                .current_dir(&dir),
        )?;
        write(&stamp, &wanted)?;
        Ok(dir)
    }

    /// The browser.
    pub(super) fn chromium(&mut self) -> Result<PathBuf> {
        let find = || ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(which);
        if let Some(browser) = find() {
            return Ok(browser);
        }
        self.packages.install(&["chromium"])?;
        find().context("no chromium even after its installation")
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
