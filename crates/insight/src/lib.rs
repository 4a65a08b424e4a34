//! Findings: where the time of a step went.
