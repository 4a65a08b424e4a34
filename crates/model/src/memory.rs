//! Large stretches of zeroed memory that the operating system gets back as soon as they are dropped.
//!
//! An allocator keeps what is freed for what comes next. Weights and the KV cache are given up for others to use the memory, so they
//! have mappings of their own. A page of one takes memory when it is first written.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// So many `T`, zero at first.
pub(crate) struct Zeroed<T> {
    /// None for an empty one: there are no mappings of no bytes.
    map: Option<MmapMut>,
    of: PhantomData<T>,
}

/// What may lie in such memory.
pub(crate) trait Plain: FromBytes + IntoBytes + Immutable + KnownLayout {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Plain for T {}

// === impl Zeroed ===

impl<T: Plain> Zeroed<T> {
    /// `len` of them. Fails where the operating system has not got the room.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = if bytes == 0 { None } else { Some(MmapMut::map_anon(bytes)?) };
        Ok(Self { map, of: PhantomData })
    }
}

impl<T> Zeroed<T> {
    /// None of them.
    pub(crate) fn empty() -> Self {
        Self { map: None, of: PhantomData }
    }
}

impl<T: Plain> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // A mapping begins at a page of memory and has the size of whole `T`, so this does not fail.
        self.map.as_deref().and_then(|bytes| <[T]>::ref_from_bytes(bytes).ok()).unwrap_or_default()
    }
}

impl<T: Plain> DerefMut for Zeroed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.map.as_deref_mut().and_then(|bytes| <[T]>::mut_from_bytes(bytes).ok()).unwrap_or_default()
    }
}

impl<T> fmt::Debug for Zeroed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.map.as_ref().map_or(0, |map| map.len());
        f.debug_struct("Zeroed").field("bytes", &bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_of_the_size_asked_for() {
        let mut memory = Zeroed::<[f32; 16]>::new(1000).unwrap();
        assert!(memory.len() == 1000 && memory.iter().flatten().all(|value| *value == 0.0));
        memory[999][15] = 1.0;
        assert_eq!(memory.iter().flatten().filter(|value| **value != 0.0).count(), 1);
        assert_eq!((Zeroed::<f32>::new(0).unwrap().len(), Zeroed::<f32>::empty().len()), (0, 0));
        assert!(Zeroed::<f32>::new(usize::MAX / 8).is_err());
    }
}
