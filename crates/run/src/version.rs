//! Versions of what is on disk: a reader takes any minor version of a major version that it knows.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::RunError;

/// A format's version. The minor number grows when something is added that an older reader may pass over, the
/// major number when an older reader would misread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Readers refuse a major number above their own.
    pub major: u16,
    /// Readers take any minor number.
    pub minor: u16,
}

/// The version in which this crate writes: run.json, segments, parts and manifests share it.
///
/// 1.1 added to what is told of a sample, 1.2 forward passes, 1.3 more of a sample: counts, and what was left out.
pub const FORMAT: Version = Version { major: 1, minor: 3 };

// === impl Version ===

impl Version {
    /// Refuses what this crate cannot read, naming the file.
    pub(crate) fn check(self, path: &Path) -> Result<(), RunError> {
        if self.major <= FORMAT.major {
            return Ok(());
        }
        Err(RunError::Newer { path: path.to_owned(), found: self, supported: FORMAT })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A text that is no version.
#[derive(Debug, thiserror::Error)]
#[error("not a version such as 1.0")]
pub struct NotAVersion;

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let (major, minor) = text.split_once('.').ok_or(NotAVersion)?;
        let number = |text: &str| text.parse().map_err(|_| NotAVersion);
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
