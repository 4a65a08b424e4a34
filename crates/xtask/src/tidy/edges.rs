//! Which crate of ours may import which: ARCHITECTURE.md draws the walls, this table keeps them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::Finding;

/// What each crate may import, without the prefix of the package names. Tests may use any crate of ours.
const EDGES: &[(&str, Imports)] = &[
    ("trace", Imports::These(&[])),
    ("wire", Imports::These(&[])),
    ("fpm", Imports::These(&[])),
    ("config", Imports::These(&[])),
    ("route", Imports::These(&[])),
    ("track", Imports::These(&["config"])),
    ("model", Imports::These(&[])),
    ("stats", Imports::These(&["trace"])),
    ("run", Imports::These(&["trace"])),
    ("formats", Imports::These(&["trace"])),
    ("rollout", Imports::These(&[])),
    ("insight", Imports::These(&["trace", "stats"])),
    ("record", Imports::These(&["trace", "stats", "run", "track", "fpm", "config"])),
    ("gateway", Imports::These(&["trace", "wire", "route", "config"])),
    ("engine", Imports::These(&["model", "fpm", "config"])),
    ("view", Imports::These(&["trace", "stats", "run", "insight"])),
    ("cli", Imports::Any),
    ("testkit", Imports::Any),
    ("xtask", Imports::These(&[])),
];

pub(super) const PREFIX: &str = "rollscope-";

#[derive(Debug, Clone, Copy)]
enum Imports {
    These(&'static [&'static str]),
    Any,
}

/// A package of the workspace, as `cargo metadata` tells it.
#[derive(Debug, Deserialize)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) dependencies: Vec<Dependency>,
}

/// A dependency of a package.
#[derive(Debug, Deserialize)]
pub(super) struct Dependency {
    pub(super) name: String,
    /// `dev`, `build`, or nothing for a normal one.
    pub(super) kind: Option<String>,
}

/// The workspace's packages.
pub(super) fn crates(root: &Path) -> Result<Vec<Crate>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Crate>,
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cannot read cargo metadata")?;
    Ok(metadata.packages)
}

/// Imports that the table does not allow.
pub(super) fn check(crates: &[Crate]) -> Vec<Finding> {
    crates.iter().flat_map(check_crate).collect()
}

fn check_crate(package: &Crate) -> Vec<Finding> {
    let short = package.name.strip_prefix(PREFIX).unwrap_or(&package.name);
    let path = format!("crates/{short}/Cargo.toml");
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == short) else {
        return vec![Finding::error(
            &path,
            0,
            "crate is missing in the table of imports (xtask/src/tidy/edges.rs)",
        )];
    };
    let imports = package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
    let ours = imports.filter_map(|dependency| dependency.name.strip_prefix(PREFIX));
    ours.filter(|import| !allowed.allows(import))
        .map(|import| Finding::error(&path, 0, format!("{short} may not import {import}")))
        .collect()
}

// === impl Imports ===

impl Imports {
    fn allows(self, import: &str) -> bool {
        match self {
            // What is made for tests stays in tests.
            Self::Any => !matches!(import, "testkit" | "xtask"),
            Self::These(allowed) => allowed.contains(&import),
        }
    }
}
