//! Checks of one file at a time: its first line, its length, its words.

use crate::workspace::File;

use super::Finding;

/// Lines of production code beyond which a file is too long to read from top to bottom.
const LONG_LINES: usize = 400;
/// Lines beyond which it has to be split.
const TOO_LONG_LINES: usize = 800;

/// Words that say that something is unfinished or left behind. Spelled in two halves, so that this file passes.
const FORBIDDEN_WORDS: &[(&str, &str)] = &[
    (concat!("to", "do!"), "unfinished code"),
    (concat!("TO", "DO"), "a note to oneself; finish it, or file it where others see it"),
    (concat!("FIX", "ME"), "a note to oneself; fix it, or file it where others see it"),
    (concat!("X", "XX"), "a note to oneself; finish it, or file it where others see it"),
    (concat!("db", "g!"), "debugging output"),
    (concat!("#[ig", "nore"), "a test that does not run"),
];

/// Roots of paths that exist on one machine only.
const MACHINE_PATHS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/t", "mp/")];

/// Hosts of package registries: clients are set up to know theirs.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("registry.npm", "js.org"),
    concat!("py", "pi.org"),
    concat!("files.python", "hosted.org"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("deb.de", "bian.org"),
];

/// An address that every network reaches.
const ANY_ADDRESS: &str = concat!("0.0.", "0.0");

/// Files that are not ours to word.
const NOT_OURS: &[&str] = &["LICENSE", "Cargo.lock"];

/// Everything that is wrong with the file by itself.
pub(super) fn check(file: &File) -> Vec<Finding> {
    if NOT_OURS.contains(&file.path.as_str())
        || file.path.contains("/assets/")
        || file.path.contains("/data/")
    {
        return Vec::new();
    }
    let mut findings = words(file);
    if has_extension(&file.path, "rs") {
        findings.extend(purpose(file));
        findings.extend(production(file));
    }
    if file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml") {
        findings.extend(lints(file));
    }
    findings
}

/// The lines of a source file that are not `#[cfg(test)]` items, with their numbers from 1; none of a test's file.
///
/// Relies on rustfmt: an item ends where a line closes it at the indentation of its start.
fn production_lines(file: &File) -> Vec<(usize, &str)> {
    let is_test =
        file.path.contains("/tests/") || file.path.contains("/benches/") || file.path.ends_with("/tests.rs");
    let mut lines = Vec::new();
    if is_test || file.path.starts_with("crates/testkit/") {
        return lines;
    }
    let mut numbered = (1..).zip(file.text.lines());
    while let Some((number, line)) = numbered.next() {
        if line.trim_start() != "#[cfg(test)]" {
            lines.push((number, line));
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        for (_, line) in numbered.by_ref() {
            let rest = line.strip_prefix(indent).unwrap_or_default();
            let is_start = !rest.is_empty() && !rest.starts_with(' ') && !rest.starts_with("#[");
            if is_start && (rest.ends_with(';') || rest.ends_with('}') || rest.ends_with(',')) {
                break;
            }
        }
    }
    lines
}

fn purpose(file: &File) -> Option<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    let has_purpose = first.strip_prefix("//! ").is_some_and(|sentence| !sentence.trim().is_empty());
    (!has_purpose)
        .then(|| Finding::error(&file.path, 1, "the first line does not tell the file's purpose (`//! …`)"))
}

fn production(file: &File) -> Vec<Finding> {
    let lines = production_lines(file);
    let mut findings = Vec::new();
    match lines.len() {
        count if count > TOO_LONG_LINES => {
            findings.push(Finding::error(
                &file.path,
                0,
                format!("{count} lines of production code, at most {TOO_LONG_LINES}"),
            ));
        }
        count if count > LONG_LINES => {
            findings.push(Finding::warning(
                &file.path,
                0,
                format!("{count} lines of production code, aim at {LONG_LINES}"),
            ));
        }
        _ => {}
    }
    for (number, line) in lines {
        let code = line.split("//").next().unwrap_or_default();
        if code.contains(ANY_ADDRESS) {
            findings.push(Finding::error(
                &file.path,
                number,
                format!("{ANY_ADDRESS} in code: servers bind to 127.0.0.1 unless told"),
            ));
        }
        if is_global(code) && (file.path.starts_with("crates/config/") || code.contains("Published")) {
            let message = "configuration is a handle that is passed down, never a global of the process";
            findings.push(Finding::error(&file.path, number, message));
        }
        if code.contains(concat!("unsafe", "_code")) && !file.path.starts_with("crates/model/") {
            findings.push(Finding::error(&file.path, number, "only crates/model may have unsafe code"));
        }
    }
    findings
}

/// Whether the line declares something that there is once in the process, or once in a thread.
fn is_global(code: &str) -> bool {
    let code = code.trim_start();
    let code = code
        .strip_prefix("pub")
        .map_or(code, |rest| rest.trim_start_matches("(crate)").trim_start_matches("(super)"));
    code.trim_start().starts_with("static ")
        || ["OnceLock", "LazyLock", "OnceCell", "LazyCell", "thread_local!"]
            .iter()
            .any(|word| has_word(code, word))
}

fn words(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        for (word, reason) in FORBIDDEN_WORDS {
            if has_word(line, word) {
                findings.push(Finding::error(&file.path, number, format!("`{word}`: {reason}")));
            }
        }
        for path in MACHINE_PATHS.iter().filter(|path| has_absolute(line, path)) {
            findings.push(Finding::error(&file.path, number, format!("a path of one machine: {path}")));
        }
        for host in REGISTRY_HOSTS.iter().filter(|host| line.contains(*host)) {
            findings.push(Finding::error(
                &file.path,
                number,
                format!("the host of a package registry: {host}"),
            ));
        }
    }
    findings
}

/// Whether the word stands in the line, not as a piece of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next().filter(|_| word.ends_with(char::is_alphanumeric));
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

/// Whether the line names a path that begins so, rather than a longer path or an address that contains it.
fn has_absolute(line: &str, root: &str) -> bool {
    line.match_indices(root).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|char| !char.is_alphanumeric() && !"/._-}*".contains(char))
    })
}

fn lints(file: &File) -> Option<Finding> {
    let inherits = file
        .text
        .split("[lints]")
        .nth(1)
        .is_some_and(|rest| rest.trim_start().starts_with("workspace = true"));
    (!inherits).then(|| Finding::error(&file.path, 0, "does not take over the workspace's lints"))
}

pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
}
