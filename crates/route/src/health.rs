//! What the active checks of one worker say.
//!
//! | from | to | when |
//! |---|---|---|
//! | Unchecked | Healthy | the first check passes |
//! | Unchecked | Unhealthy | the first check fails: it is not up yet |
//! | Healthy | Unhealthy | `failure_threshold` checks in a row fail |
//! | Unhealthy | Healthy | `success_threshold` checks in a row pass |
//!
//! A worker that is not checked stays unchecked, and is used.

/// When a worker's health changes; the names are those of SGLang's router, with the prefix `health_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// So many failed checks in a row make it unhealthy. Zero counts as one.
    pub failure_threshold: u32,
    /// So many passed checks in a row make it healthy again. Zero counts as one.
    pub success_threshold: u32,
}

/// A worker's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthState {
    /// It has not been checked.
    Unchecked,
    /// It is up.
    Healthy,
    /// It is not.
    Unhealthy,
}

/// Counts checks.
#[derive(Debug)]
pub(crate) struct Health {
    config: HealthConfig,
    state: HealthState,
    /// Checks in a row that speak against the state.
    against: u32,
}

// === impl HealthConfig ===

impl Default for HealthConfig {
    /// The defaults of SGLang's router.
    fn default() -> Self {
        Self { failure_threshold: 3, success_threshold: 2 }
    }
}

// === impl HealthState ===

impl HealthState {
    /// For figures and texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unchecked => "unchecked",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

// === impl Health ===

impl Health {
    pub(crate) fn new(config: HealthConfig) -> Self {
        Self { config, state: HealthState::Unchecked, against: 0 }
    }

    pub(crate) fn state(&self) -> HealthState {
        self.state
    }

    /// Takes the result of a check; gives the state if it has changed.
    pub(crate) fn record(&mut self, passed: bool) -> Option<HealthState> {
        let (told, needed) = if passed {
            (HealthState::Healthy, self.config.success_threshold)
        } else {
            (HealthState::Unhealthy, self.config.failure_threshold)
        };
        if told == self.state {
            self.against = 0;
            return None;
        }
        self.against += 1;
        if self.state != HealthState::Unchecked && self.against < needed {
            return None;
        }
        (self.state, self.against) = (told, 0);
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_follows_checks_in_a_row() {
        use HealthState::{Healthy, Unchecked, Unhealthy};
        for (checks, states) in [
            ("", &[][..]),
            ("+", &[Healthy]),
            ("-", &[Unhealthy]),
            ("+--+--", &[Healthy]),
            ("+---", &[Healthy, Unhealthy]),
            ("+----+-+", &[Healthy, Unhealthy]),
            ("-++", &[Unhealthy, Healthy]),
            ("-+-++---", &[Unhealthy, Healthy, Unhealthy]),
        ] {
            let mut health = Health::new(HealthConfig::default());
            let changes: Vec<_> = checks.chars().filter_map(|check| health.record(check == '+')).collect();
            assert_eq!(changes, states, "{checks}");
            assert_eq!(health.state(), states.last().copied().unwrap_or(Unchecked), "{checks}");
        }
    }
}
