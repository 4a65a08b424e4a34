//! `cargo xtask dist`: the program as one installs it.
//!
//! A request passes through much code and little of it twice, so that it waits for instructions more than for anything else. A
//! build that is told which code is used puts that close together and spends no room on the rest (profile-guided optimization:
//! <https://doc.rust-lang.org/rustc/profile-guided-optimization.html>). What is counted are the jobs of the program itself: serving
//! before fake workers, a rollout over the embedded engines, and all that is made of its run. It takes two builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::bench;
use crate::host::{build_with, output, target_dir};
use crate::workspace::{Workspace, say, say_aside};

/// What `rollscope export` writes.
const FORMATS: [&str; 5] = ["perfetto", "chrome", "otlp", "slime-json", "html"];
/// Has the linker leave functions by how much they are used, as the compiler has sorted them.
const TOGETHER: &str = "-Clink-arg=-Wl,-z,keep-text-section-prefix";
/// Of slime.
const DUMP: &str = "crates/formats/tests/data/turns.pt";

/// Builds it, and says where it is.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let dir = target_dir(&workspace.root, "dist")?;
    let merger = merger()?;
    let counts = dir.join("counts");
    if counts.exists() {
        std::fs::remove_dir_all(&counts).with_context(|| format!("cannot empty {}", counts.display()))?;
    }
    say_aside("building the program that counts what it uses");
    let flag = format!("-Cprofile-generate={}", counts.display());
    let counting = build(workspace, &dir.join("counting"), &flag)?;
    say_aside("serving before fake workers");
    bench::exercise(workspace, &counting)?;
    say_aside("rolling out, and making of the run all that can be made");
    roll_out(workspace, &counting, &dir.join("work"))?;
    let used = dir.join("used.profdata");
    output(Command::new(merger).arg("merge").arg("-o").arg(&used).arg(&counts))?;
    say_aside("building the program");
    let flags = format!("-Cprofile-use={} {TOGETHER}", used.display());
    let built = build(workspace, &dir.join("optimized"), &flags)?;
    let program = dir.join("rollscope");
    std::fs::copy(&built, &program).with_context(|| format!("cannot write {}", program.display()))?;
    say(&program.display().to_string());
    Ok(true)
}

/// With a target of its own the flags are for the program alone and not for what only runs while it is built.
fn build(workspace: &Workspace, target: &Path, flag: &str) -> Result<PathBuf> {
    let flags =
        std::env::var("RUSTFLAGS").map_or_else(|_| flag.to_owned(), |flags| format!("{flags} {flag}"));
    let (host, dir) = (told_by_rustc("host-tuple")?, target.display().to_string());
    let options = [
        "--release",
        "--package",
        "rollscope-cli",
        "--bin",
        "rollscope",
        "--target",
        &host,
        "--target-dir",
        &dir,
    ];
    build_with(&workspace.root, &options, &[("RUSTFLAGS", &flags)])
}

/// LLVM's program that adds up what was counted, which has to be of the compiler's own version.
fn merger() -> Result<PathBuf> {
    let libraries = PathBuf::from(told_by_rustc("target-libdir")?);
    let programs = libraries.parent().context("the compiler's libraries are nowhere")?.join("bin");
    let merger = programs.join("llvm-profdata");
    ensure!(
        merger.is_file(),
        "no llvm-profdata is beside the compiler: `rustup component add llvm-tools` brings it"
    );
    Ok(merger)
}

fn told_by_rustc(what: &str) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(output(Command::new(rustc).args(["--print", what]))?.trim().to_owned())
}

/// The jobs beside serving.
fn roll_out(workspace: &Workspace, program: &Path, dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let path = |name: &str| dir.join(name).display().to_string();
    let run = path("run");
    let job = |args: &[&str]| output(Command::new(program).args(args).current_dir(dir)).map(drop);
    job(&["demo", "--out", &run, "--steps", "2"])?;
    job(&["report", &run])?;
    job(&["report", &run, "--json"])?;
    for format in FORMATS {
        job(&["export", "--to", format, &run, &path(format)])?;
    }
    let dump = workspace.root.join(DUMP).display().to_string();
    job(&["import", &dump, "--out", &path("imported")])?;
    job(&["track", &run, "--to", &format!("jsonl:{}", path("lines.jsonl"))])
}
