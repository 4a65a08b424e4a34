//! Texts of which there are few, such as the names of workers: each is held once.

use std::collections::HashSet;
use std::sync::Arc;

/// The texts so far.
#[derive(Debug, Default)]
pub(crate) struct SharedTexts(HashSet<Arc<str>>);

// === impl SharedTexts ===

impl SharedTexts {
    /// The text, shared with whoever asked for it before.
    pub(crate) fn of(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.0.insert(Arc::clone(&new));
        new
    }
}
