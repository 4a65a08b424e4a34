//! The model of a rollout's traces: ids, time, stages, profiles, spans.
