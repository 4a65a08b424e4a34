//! The rollout driver: prompts go to the gateway in groups, samples come back, are rewarded and reported.
//!
//! It is a real, small rollout: every sample of a step is in flight at once up to a limit, a failed call is
//! tried again as the sample's next attempt, and a sample that cannot be had does not end the rollout. The
//! driver stands for the user's own rollout code: it names step, group, sample and attempt in the headers that
//! the gateway reads, and sends its own spans and rewards to the gateway's ingest route.

mod client;
mod clock;
mod driver;
mod error;
mod ingest;
mod kept;
mod prompts;
mod repetition;
mod reward;
mod sample;

pub use driver::{Event, Rollout, RolloutOptions, StepSummary};
pub use error::RolloutError;
pub use prompts::Prompt;
pub use reward::chained_addition_reward;
pub use sample::Sample;
