//! The run directory: log, parts, manifest, recovery, following.
