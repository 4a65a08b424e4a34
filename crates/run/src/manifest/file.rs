//! A file of a manifest: JSON that ends in a checksum of what stands before it.
//!
//! One that does not match is passed over as one that was half written is. Earlier versions wrote none.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize, de};

use crate::error::RunError;
use crate::manifest::Seal;
use crate::step_set::StepSet;
use crate::version::{FORMAT, Version};

/// N.json; a file of earlier seals is the same without earlier ones.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ManifestFile {
    version: Version,
    /// Names of files in the same folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) earlier: Vec<String>,
    #[serde(default)]
    pub(super) seals: Vec<Seal>,
    /// Steps of which only numbers are left; earlier writers did not say it.
    #[serde(default, skip_serializing_if = "StepSet::is_empty")]
    pub(super) forgotten: StepSet,
}

/// What is read before anything else is believed.
#[derive(Deserialize)]
struct Preamble {
    version: Version,
    /// Earlier writers did not say it.
    #[serde(default)]
    crc32: Option<u32>,
}

// === impl ManifestFile ===

impl ManifestFile {
    /// One of the version that is written here.
    pub(super) fn new(earlier: Vec<String>, seals: Vec<Seal>) -> Self {
        Self { version: FORMAT, earlier, seals, forgotten: StepSet::default() }
    }

    /// Reads a file that must be there.
    pub(super) fn read(path: &Path) -> Result<Self, RunError> {
        let bytes = fs::read(path).map_err(RunError::io("read", path))?;
        Self::parse(path, &bytes)
    }

    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, RunError> {
        let damaged = |source| RunError::DamagedManifest { path: path.to_owned(), source };
        if let Ok(preamble) = serde_json::from_slice::<Preamble>(bytes) {
            if !preamble.crc32.is_none_or(|crc32| is_sum_of(crc32, bytes)) {
                return Err(damaged(de::Error::custom("its checksum does not match")));
            }
            preamble.version.check(path)?;
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>, RunError> {
        let mut bytes =
            serde_json::to_vec(self).map_err(|source| RunError::EncodeJson { what: "a manifest", source })?;
        // The checksum covers what stands before it, so it replaces the last brace.
        bytes.pop();
        let crc32 = crc32fast::hash(&bytes);
        bytes.extend_from_slice(checksum_member(crc32).as_bytes());
        Ok(bytes)
    }
}

/// How a file ends whose content before this has that checksum.
fn checksum_member(crc32: u32) -> String {
    format!(",\"crc32\":{crc32}}}\n")
}

fn is_sum_of(crc32: u32, bytes: &[u8]) -> bool {
    let content = bytes.strip_suffix(checksum_member(crc32).as_bytes());
    content.is_some_and(|content| crc32fast::hash(content) == crc32)
}
