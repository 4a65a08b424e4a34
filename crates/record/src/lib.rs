//! The recorder: profiles and spans into a run, numbers at the end of a step.
