//! What the live requests say of themselves, counted: the names that clients gave them, and their steps.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

/// How many live requests say each thing. It holds no more than they do.
#[derive(Debug)]
pub(crate) struct Live<T>(Mutex<BTreeMap<T, usize>>);

// === impl Live ===

impl<T: Ord + Clone> Live<T> {
    pub(crate) fn add(&self, said: &[T]) {
        // Most requests say nothing, and all threads share the lock.
        if said.is_empty() {
            return;
        }
        let mut live = self.0.lock();
        for said in said {
            *live.entry(said.clone()).or_default() += 1;
        }
    }

    pub(crate) fn remove(&self, said: &[T]) {
        if said.is_empty() {
            return;
        }
        let mut live = self.0.lock();
        for said in said {
            if let Some(count) = live.get_mut(said) {
                *count -= 1;
                if *count == 0 {
                    live.remove(said);
                }
            }
        }
    }

    /// All that is said.
    pub(crate) fn said(&self) -> BTreeSet<T> {
        self.0.lock().keys().cloned().collect()
    }
}

impl Live<String> {
    /// Whether aborting this name would hit no other live request. SGLang takes a name to abort for a prefix,
    /// so `req-1` would end `req-10` too, and an empty name everything.
    pub(crate) fn is_safe_to_abort(&self, rid: &str) -> bool {
        let live = self.0.lock();
        let mut hit = live.range(rid.to_owned()..).take_while(|(other, _)| other.starts_with(rid));
        !rid.is_empty() && hit.all(|(other, count)| other == rid && *count <= 1)
    }

    /// Whether aborting one of these names would hit a request of that name.
    pub(crate) fn has_prefix_of(&self, rid: &str) -> bool {
        self.0.lock().keys().any(|name| rid.starts_with(&**name))
    }
}

impl<T> Default for Live<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_live_until_the_last_that_says_it_is_gone() {
        let live = Live::default();
        live.add(&[7, 8]);
        live.add(&[7]);
        live.remove(&[7, 8]);
        assert_eq!(live.said(), BTreeSet::from([7]));
        live.remove(&[7, 9]);
        assert!(live.0.lock().is_empty());
    }

    #[test]
    fn an_abort_never_hits_another_live_request() {
        let rids = Live::default();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        rids.add(&names(&["req-1", "req-10", "b", "b", ""]));
        for (rid, safe) in
            [("req-1", false), ("req-10", true), ("b", false), ("", false), ("req", false), ("c", true)]
        {
            assert_eq!(rids.is_safe_to_abort(rid), safe, "{rid:?}");
        }
        rids.remove(&names(&["req-10", "b"]));
        assert!(rids.is_safe_to_abort("req-1") && rids.is_safe_to_abort("b"));
    }
}
