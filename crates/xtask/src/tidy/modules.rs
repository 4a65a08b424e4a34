//! Every Rust file is a module of something: one that nobody declares is not compiled, and its tests do not run.

use crate::workspace::File;

use super::Finding;
use super::sources::has_extension;

/// The files of crates that no `mod` names.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let sources: Vec<&File> = files
        .iter()
        .filter(|file| file.path.starts_with("crates/") && has_extension(&file.path, "rs"))
        .collect();
    let is_declared = |file: &File| {
        let (folder, name) = place(&file.path);
        let declaration = format!("mod {name};");
        sources.iter().any(|other| children(&other.path) == folder && other.text.contains(&declaration))
    };
    sources
        .iter()
        .filter(|file| !is_root(&file.path) && !is_declared(file))
        .map(|file| Finding::error(&file.path, 0, "no module: nothing declares it"))
        .collect()
}

/// Whether cargo compiles a file by itself.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(2).collect();
    matches!(
        parts.as_slice(),
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["tests" | "examples" | "benches", _]
            | ["tests" | "examples" | "benches", _, "main.rs"]
    )
}

/// The folder in which a file's module is declared, and the module's name.
fn place(path: &str) -> (&str, &str) {
    let path = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The folder in which the modules that a file declares are found.
fn children(path: &str) -> &str {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if is_root(path) || name == "mod.rs" { folder } else { path.trim_end_matches(".rs") }
}
