//! Trackers: the numbers of a step to W&B, TensorBoard, MLflow or a JSONL file.
//!
//! A [`Tracker`] is opened for a run of ours and a [`Target`], knows which steps it has already, and is given the
//! others one by one. What it has is read back from what it wrote, or asked of the server, so that after a crash no
//! step is missing and none is there twice. A tracker that cannot be reached is an error that may be tried again.
//!
//! The crate is synchronous and may wait for a disk or a server; call it from a thread of its own.

mod target;
mod tracker;

mod jsonl;
mod mlflow;
mod records;
mod tensorboard;
mod wandb;

mod error;

pub use error::TrackError;
pub use target::{NotATarget, Target};
pub use tracker::{Numbers, Origin, Tracker};

/// The name under which each tracker gets the number of the step, for its x-axis.
pub const STEP_NAME: &str = "rollout/step";
