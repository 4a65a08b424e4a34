//! From traces to the numbers of a rollout step.
