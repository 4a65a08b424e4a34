//! The HTTP data plane between rollout code and inference workers.
