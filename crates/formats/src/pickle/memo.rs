//! What a pickle asks for again.

use super::opcode::{Op, Ops, STOP, little_endian};
use super::{PickleError, PickleFault, Value};

/// The memoised objects that are asked for, each for as long as it still is. A pickle names nearly every object, and asks
/// for few of them.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// By the number that a pickle gives an object, its place among the slots and 1 more; 0 where it is never asked for.
    places: Vec<u32>,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) value: Option<Value>,
    /// How often it is still asked for.
    pub(super) uses: u32,
}

/// The number by which an opcode names an object, or asks for one.
pub(super) fn memo_index(op: Op<'_>) -> Option<usize> {
    match op.code {
        b'h' | b'q' => op.argument.first().map(|index| usize::from(*index)),
        b'g' | b'p' => std::str::from_utf8(op.argument).ok()?.trim_end_matches('\r').parse().ok(),
        _ => usize::try_from(little_endian(op.argument)).ok(),
    }
}

// === impl Memo ===

impl Memo {
    /// Finds the end of the pickle that begins at `start`, and what it asks for until then.
    pub(super) fn of(bytes: &[u8], start: usize) -> Result<(usize, Self), PickleError> {
        let mut memo = Self::default();
        let mut ops = Ops::new(bytes, start);
        loop {
            let op = ops.next()?;
            match op.code {
                STOP => return Ok((ops.position(), memo)),
                b'g' | b'h' | b'j' => {
                    // As many objects as there are bytes have never been named.
                    let index = memo_index(op).filter(|index| *index < bytes.len());
                    let index = index.ok_or(PickleError { offset: op.at, fault: PickleFault::NoSuchMemo })?;
                    memo.count(index);
                }
                _ => {}
            }
        }
    }

    fn count(&mut self, index: usize) {
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.slots.push(Slot::default());
            self.places[index] = self.slots.len() as u32;
        }
        if let Some(slot) = self.slot(index) {
            slot.uses += 1;
        }
    }

    /// Nothing for an object that is never asked for.
    pub(super) fn slot(&mut self, index: usize) -> Option<&mut Slot> {
        let place = self.places.get(index)?.checked_sub(1)?;
        self.slots.get_mut(place as usize)
    }

    /// An object that is asked for; it goes with the last time.
    pub(super) fn recall(&mut self, index: usize) -> Option<Value> {
        let slot = self.slot(index)?;
        slot.uses = slot.uses.saturating_sub(1);
        if slot.uses == 0 { slot.value.take() } else { slot.value.clone() }
    }
}
