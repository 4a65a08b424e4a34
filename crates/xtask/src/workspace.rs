//! The checkout: where it is, which files it has, and how a chore talks to the terminal.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Folders that hold no source, as in `.gitignore`.
const NOT_SOURCE: &[&str] = &[".git", "target", "node_modules", "__pycache__"];
/// The same, at the root only.
const NOT_SOURCE_AT_ROOT: &str = "runs";

/// The checkout that `cargo xtask` was called in.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
}

/// A text file of the checkout.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/` between parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

// === impl Workspace ===

impl Workspace {
    /// Cargo tells a program that it runs where that program's package is.
    pub(crate) fn find() -> Result<Self> {
        let package = std::env::var("CARGO_MANIFEST_DIR").context("not started by cargo")?;
        let root = Path::new(&package).ancestors().nth(2).context("the package is not at crates/xtask")?;
        Ok(Self { root: root.to_owned() })
    }

    /// Every text file, sorted by path.
    pub(crate) fn files(&self) -> Result<Vec<File>> {
        let mut files = Vec::new();
        self.collect(&self.root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    fn collect(&self, dir: &Path, files: &mut Vec<File>) -> Result<()> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let name = entry.file_name();
            // In a further worktree `.git` is a file.
            let is_skipped = NOT_SOURCE.iter().any(|skipped| name == *skipped)
                || (dir == self.root && name == NOT_SOURCE_AT_ROOT);
            if is_skipped {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.collect(&path, files)?;
            } else if let Ok(text) = String::from_utf8(std::fs::read(&path)?) {
                let path = path.strip_prefix(&self.root)?.to_string_lossy().replace('\\', "/");
                files.push(File { path, text });
            }
        }
        Ok(())
    }
}

// === The terminal ===

/// A line of the result. That nobody reads it (a closed pipe) is no fault of the chore.
pub(crate) fn say(line: &str) {
    drop(writeln!(std::io::stdout().lock(), "{line}"));
}

/// A line that is not the result.
pub(crate) fn say_aside(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}
