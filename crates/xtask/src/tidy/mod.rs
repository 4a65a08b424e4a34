//! What the compiler does not check: who may import whom, how long files are, which are compiled, which words and paths stay out.
//!
//! Each check is a function from files to findings. It is tested on files made up for the purpose.

mod docs;
mod edges;
mod modules;
mod sources;
#[cfg(test)]
mod tests;

use std::fmt;

use anyhow::Result;

use crate::workspace::{Workspace, say};

/// Something that is not as the project wants it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// From 1; 0 for the whole file.
    line: usize,
    message: String,
    level: Level,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Warning,
    Error,
}

/// Prints what is not tidy; true if nothing that counts as an error is left.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let files = workspace.files()?;
    let crates = edges::crates(&workspace.root)?;
    let mut findings = edges::check(&crates);
    findings.extend(files.iter().flat_map(sources::check));
    findings.extend(modules::check(&files));
    findings.extend(docs::check(&files, &crates));
    findings.sort();
    for finding in &findings {
        say(&finding.to_string());
    }
    let errors = findings.iter().filter(|finding| finding.level == Level::Error).count();
    say(&format!("tidy: {} files, {errors} errors, {} warnings", files.len(), findings.len() - errors));
    Ok(errors == 0)
}

// === impl Finding ===

impl Finding {
    fn error(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), level: Level::Error }
    }

    fn warning(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(path, line, message) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Warning => "warning",
            Level::Error => "error",
        };
        match self.line {
            0 => write!(f, "{}: {level}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {level}: {}", self.path, self.message),
        }
    }
}
