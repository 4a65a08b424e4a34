//! Values in the order of their last use.

/// A set of values, each under a number of its own, in the order in which they were used. All but iterating takes
/// constant time.
#[derive(Debug)]
pub(crate) struct Aged<V> {
    slots: Vec<Slot<V>>,
    /// Numbers that are free.
    free: Vec<u32>,
    oldest: Option<u32>,
    newest: Option<u32>,
}

/// A value's number. It is free for another value once the value has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(u32);

#[derive(Debug)]
struct Slot<V> {
    /// None if the slot is free.
    value: Option<V>,
    older: Option<u32>,
    newer: Option<u32>,
}

// === impl Aged ===

impl<V> Aged<V> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), oldest: None, newest: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a value in as the one used last.
    pub(crate) fn insert(&mut self, value: V) -> SlotId {
        let id = self.store(value);
        self.link(id, self.newest);
        SlotId(id)
    }

    /// Puts a value in as used just after another.
    pub(crate) fn insert_after(&mut self, other: SlotId, value: V) -> SlotId {
        let id = self.store(value);
        self.link(id, Some(other.0));
        SlotId(id)
    }

    /// Makes a value the one used last.
    pub(crate) fn touch(&mut self, id: SlotId) {
        if self.newest != Some(id.0) {
            self.unlink(id.0);
            self.link(id.0, self.newest);
        }
    }

    pub(crate) fn get_mut(&mut self, id: SlotId) -> Option<&mut V> {
        self.slots.get_mut(id.0 as usize)?.value.as_mut()
    }

    /// The one whose last use is longest ago.
    pub(crate) fn oldest(&self) -> Option<(SlotId, &V)> {
        let id = self.oldest?;
        Some((SlotId(id), self.slots[id as usize].value.as_ref()?))
    }

    /// All, the oldest first.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        std::iter::successors(self.oldest, |id| self.slots[*id as usize].newer)
            .filter_map(|id| self.slots[id as usize].value.as_ref())
    }

    pub(crate) fn remove(&mut self, id: SlotId) -> Option<V> {
        let value = self.slots.get_mut(id.0 as usize)?.value.take()?;
        self.unlink(id.0);
        self.free.push(id.0);
        Some(value)
    }

    fn store(&mut self, value: V) -> u32 {
        let slot = Slot { value: Some(value), older: None, newer: None };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = slot;
            return id;
        }
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    /// Puts an unlinked slot right after another, or first.
    fn link(&mut self, id: u32, older: Option<u32>) {
        let newer = match older {
            Some(older) => self.slots[older as usize].newer.replace(id),
            None => self.oldest.replace(id),
        };
        match newer {
            Some(newer) => self.slots[newer as usize].older = Some(id),
            None => self.newest = Some(id),
        }
        let slot = &mut self.slots[id as usize];
        (slot.older, slot.newer) = (older, newer);
    }

    fn unlink(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        let (older, newer) = (slot.older.take(), slot.newer.take());
        match older {
            Some(older) => self.slots[older as usize].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer as usize].older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_a_list(acts in prop::collection::vec((0..4, any::<usize>()), 0..200)) {
            let (mut aged, mut model) = (Aged::new(), Vec::<(SlotId, usize)>::new());
            for (value, (act, which)) in acts.into_iter().enumerate() {
                let at = which.checked_rem(model.len());
                match (act, at) {
                    (0, _) => model.push((aged.insert(value), value)),
                    (1, Some(at)) => {
                        let id = aged.insert_after(model[at].0, value);
                        model.insert(at + 1, (id, value));
                    }
                    (2, Some(at)) => {
                        let entry = model.remove(at);
                        aged.touch(entry.0);
                        model.push(entry);
                    }
                    (_, Some(at)) => {
                        let (id, value) = model.remove(at);
                        prop_assert_eq!(aged.remove(id), Some(value));
                    }
                    (_, None) => {}
                }
                prop_assert!(aged.iter().eq(model.iter().map(|(_, value)| value)));
                prop_assert_eq!(aged.oldest().map(|(id, value)| (id, *value)), model.first().copied());
                prop_assert_eq!(aged.len(), model.len());
            }
        }
    }
}
