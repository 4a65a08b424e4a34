//! What is noted of a worker by whoever registers it.

use std::collections::BTreeMap;

use serde::Deserialize;

pub(crate) type Labels = BTreeMap<String, String>;

/// What SGLang's router takes beside. No choice goes by it; it is kept and shown.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Tags {
    pub(crate) priority: Option<u32>,
    pub(crate) cost: Option<f64>,
    pub(crate) labels: Option<Labels>,
}

/// As SGLang's router has them of a worker of which nothing else is said.
const DEFAULT_PRIORITY: u32 = 50;
const DEFAULT_COST: f64 = 1.0;
/// Names and values of a worker's labels: they are shown with each list of the workers.
pub(crate) const MAX_LABELS_BYTES: usize = 64 << 10;

// === impl Tags ===

impl Tags {
    pub(crate) fn priority(&self) -> u32 {
        self.priority.unwrap_or(DEFAULT_PRIORITY)
    }

    pub(crate) fn cost(&self) -> f64 {
        self.cost.unwrap_or(DEFAULT_COST)
    }

    /// With what is said anew, label by label.
    pub(crate) fn amended(&self, anew: &Self) -> Self {
        let labels = match (&self.labels, &anew.labels) {
            (Some(known), Some(anew)) => Some(known.clone().into_iter().chain(anew.clone()).collect()),
            (known, anew) => anew.clone().or_else(|| known.clone()),
        };
        Self { priority: anew.priority.or(self.priority), cost: anew.cost.or(self.cost), labels }
    }

    /// With what has changed where it comes from; what else has been noted stays.
    pub(crate) fn edited(&self, before: &Self, now: &Self) -> Self {
        let labels = |tags: &Self| tags.labels.clone().unwrap_or_default();
        let (before_labels, now_labels) = (labels(before), labels(now));
        let mut edited = labels(self);
        edited.retain(|name, _| !before_labels.contains_key(name) || now_labels.contains_key(name));
        edited.extend(now_labels.into_iter().filter(|(name, value)| before_labels.get(name) != Some(value)));
        Self {
            priority: if before.priority == now.priority { self.priority } else { now.priority },
            cost: if before.cost == now.cost { self.cost } else { now.cost },
            labels: (!edited.is_empty()).then_some(edited),
        }
    }

    /// Whether there are no more labels than may be kept.
    pub(crate) fn fits(&self) -> bool {
        let bytes: usize = self.labels.iter().flatten().map(|(name, value)| name.len() + value.len()).sum();
        bytes <= MAX_LABELS_BYTES
    }
}
