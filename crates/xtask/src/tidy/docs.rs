//! Checks of the documents: the map stays short and complete, links lead somewhere.

use crate::workspace::File;

use super::edges::Crate;
use super::sources::has_extension;
use super::{Finding, edges};

const MAP: &str = "ARCHITECTURE.md";
/// Beyond this nobody reads the map.
const MAP_LINES: usize = 250;

/// Everything that is wrong with the documents.
pub(super) fn check(files: &[File], crates: &[Crate]) -> Vec<Finding> {
    let mut findings = map(files, crates);
    findings.extend(
        files.iter().filter(|file| has_extension(&file.path, "md")).flat_map(|file| links(file, files)),
    );
    findings
}

fn map(files: &[File], crates: &[Crate]) -> Vec<Finding> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else {
        return vec![Finding::error(MAP, 0, "is missing")];
    };
    let mut findings = Vec::new();
    let lines = map.text.lines().count();
    if lines > MAP_LINES {
        findings.push(Finding::error(MAP, 0, format!("{lines} lines, at most {MAP_LINES}")));
    }
    for package in crates {
        let short = package.name.strip_prefix(edges::PREFIX).unwrap_or(&package.name);
        if !map.text.contains(&format!("`{short}`")) {
            findings.push(Finding::error(MAP, 0, format!("says nothing of `{short}`")));
        }
    }
    findings
}

/// Links to files that do not exist, and names of source files that do not.
fn links(file: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains(':') && !exists(&resolve(&file.path, path), files) {
                findings.push(Finding::error(
                    &file.path,
                    number,
                    format!("link to a file that does not exist: {target}"),
                ));
            }
        }
        for path in line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("crates/")) {
            if !path.contains(['*', ' ']) && !exists(path.trim_end_matches('/'), files) {
                findings.push(Finding::error(
                    &file.path,
                    number,
                    format!("names a file that does not exist: {path}"),
                ));
            }
        }
    }
    findings
}

/// What stands in the parentheses of `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// The path that a link means, from the root.
fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A file, or a folder that has one.
fn exists(path: &str, files: &[File]) -> bool {
    files.iter().any(|file| {
        file.path == path || file.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
    })
}
