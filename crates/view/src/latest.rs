//! What was asked for last, so that it is not made again.

/// Values by key, the one that was asked for last at the end.
#[derive(Debug)]
pub(crate) struct Latest<K, V>(Vec<(K, V)>);

// === impl Latest ===

impl<K: PartialEq, V: Clone> Latest<K, V> {
    /// The value of a key, which is the latest from now on.
    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        let at = self.0.iter().position(|(held, _)| held == key)?;
        let found = self.0.remove(at);
        let value = found.1.clone();
        self.0.push(found);
        Some(value)
    }

    /// The value of a key, which is no later for it.
    pub(crate) fn peek(&self, key: &K) -> Option<V> {
        self.0.iter().find(|(held, _)| held == key).map(|(_, value)| value.clone())
    }

    /// Puts a value in the place of what was held for its key, and lets go of the oldest while there is `too_much`.
    pub(crate) fn put(&mut self, key: K, value: V, too_much: impl Fn(&[(K, V)]) -> bool) {
        self.0.retain(|(held, _)| *held != key);
        self.0.push((key, value));
        while too_much(&self.0) {
            self.0.remove(0);
        }
    }

    /// The same with what takes no more than so many bytes together.
    pub(crate) fn put_within(&mut self, most_bytes: usize, key: K, value: V)
    where
        V: AsRef<[u8]>,
    {
        let bytes = |held: &[(K, V)]| held.iter().map(|(_, value)| value.as_ref().len()).sum::<usize>();
        self.put(key, value, |held| bytes(held) > most_bytes);
    }

    /// Keeps what is wanted of it.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.0.retain(|(held, _)| is_wanted(held));
    }
}

impl<K, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_again_stays_and_nothing_is_held_twice() {
        let mut latest = Latest::default();
        let too_much = |held: &[(u32, &str)]| held.len() > 2;
        latest.put(1, "a", too_much);
        latest.put(2, "b", too_much);
        latest.put(2, "b again", too_much);
        assert_eq!(latest.get(&1), Some("a"));
        assert_eq!(latest.peek(&2), Some("b again"));
        latest.put(3, "c", too_much);
        assert_eq!([1, 2, 3].map(|key| latest.get(&key)), [Some("a"), None, Some("c")]);
    }

    #[test]
    fn one_that_is_too_large_alone_is_not_held() {
        let mut latest = Latest::default();
        latest.put(1, 99, |held| held.iter().map(|(_, size)| size).sum::<u32>() > 50);
        assert_eq!(latest.get(&1), None);
    }
}
