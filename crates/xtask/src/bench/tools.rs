//! What the benchmark needs: our own binaries, the peers and the load generator, all made or found on first use.
//!
//! Python's packages live in `target/bench/venv`; programs of the operating system are installed only where they are
//! missing and we may. A peer that can not be had is left out, with a line that says so.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::system::System;
use crate::host::{Packages, build, pip_install, target_dir, which};
use crate::workspace::say_aside;

#[derive(Debug)]
pub(super) struct Tools {
    /// `target/bench`.
    dir: PathBuf,
    rollscope: PathBuf,
    worker: PathBuf,
    client: PathBuf,
    wrk: PathBuf,
    nginx: Option<PathBuf>,
    haproxy: Option<PathBuf>,
    python_peers: Vec<System>,
}

/// The routers, and the versions that the bars speak of.
const PYTHON_PEERS: &[(System, &str)] =
    &[(System::SglangRouter, "sglang-router==0.3.2"), (System::Smg, "smg==1.13.0")];

// === impl Tools ===

impl Tools {
    /// Builds and finds everything; `binary` stands for the build of ours.
    pub(super) fn new(root: &Path, binary: Option<&Path>) -> Result<Self> {
        let mut tools = Self::without_peers(root, binary)?;
        let mut packages = Packages::default();
        tools.nginx = optional(System::Nginx, program("nginx", "nginx-light", &mut packages));
        tools.haproxy = optional(System::Haproxy, program("haproxy", "haproxy", &mut packages));
        tools.python_peers = python_peers(&tools.venv(), &mut packages);
        Ok(tools)
    }

    /// The same but for what others have made.
    pub(super) fn without_peers(root: &Path, binary: Option<&Path>) -> Result<Self> {
        let dir = target_dir(root, "bench")?;
        let rollscope = match binary {
            Some(binary) => {
                binary.canonicalize().with_context(|| format!("no such file: {}", binary.display()))?
            }
            None => build(root, &["--release", "--package", "rollscope-cli", "--bin", "rollscope"])?,
        };
        let example = |name| build(root, &["--release", "--package", "rollscope-testkit", "--example", name]);
        let (worker, client) = (example("bench_worker")?, example("bench_client")?);
        let wrk = program("wrk", "wrk", &mut Packages::default())?;
        let (nginx, haproxy, python_peers) = (None, None, Vec::new());
        Ok(Self { dir, rollscope, worker, client, wrk, nginx, haproxy, python_peers })
    }

    /// Whether a system is there to be measured.
    pub(super) fn has(&self, system: System) -> bool {
        match system {
            System::Direct | System::Rollscope | System::Recording => true,
            System::Nginx => self.nginx.is_some(),
            System::Haproxy => self.haproxy.is_some(),
            System::SglangRouter | System::Smg => self.python_peers.contains(&system),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn venv(&self) -> PathBuf {
        self.dir.join("venv")
    }

    pub(super) fn rollscope(&self) -> &Path {
        &self.rollscope
    }

    pub(super) fn worker(&self) -> &Path {
        &self.worker
    }

    pub(super) fn client(&self) -> &Path {
        &self.client
    }

    pub(super) fn wrk(&self) -> &Path {
        &self.wrk
    }

    pub(super) fn nginx(&self) -> Result<&Path> {
        self.nginx.as_deref().context("nginx is missing")
    }

    pub(super) fn haproxy(&self) -> Result<&Path> {
        self.haproxy.as_deref().context("haproxy is missing")
    }
}

fn program(name: &str, package: &str, packages: &mut Packages) -> Result<PathBuf> {
    if which(name).is_none() {
        packages.install(&[package])?;
    }
    which(name).with_context(|| format!("not there even after its installation: {name}"))
}

fn optional<T>(system: System, found: Result<T>) -> Option<T> {
    found.inspect_err(|error| say_aside(&format!("left out: {}: {error:#}", system.name()))).ok()
}

/// Installs the routers into an environment of their own; gives those that are there.
fn python_peers(venv: &Path, packages: &mut Packages) -> Vec<System> {
    let install = |requirement: &str, packages: &mut Packages| -> Result<()> {
        let stamp = venv.join(format!("installed-{requirement}"));
        if stamp.exists() {
            return Ok(());
        }
        pip_install(&packages.python(venv)?, [requirement])?;
        std::fs::write(&stamp, "").with_context(|| format!("cannot write {}", stamp.display()))
    };
    PYTHON_PEERS
        .iter()
        .filter_map(|(system, requirement)| {
            optional(*system, install(requirement, packages)).map(|()| *system)
        })
        .collect()
}
