//! MessagePack, as far as the log writes it by hand: what there is most of is put together without looking at types.

/// A map in the making.
#[derive(Debug)]
pub(crate) struct Map<'a> {
    buffer: &'a mut Vec<u8>,
    /// Where its number of entries stands.
    count_at: usize,
    count: u16,
}

/// Markers, as the format names them; the bits of small values are put into those of `FIX_…`.
mod marker {
    pub(super) const FIX_ARRAY: u8 = 0x90;
    pub(super) const FIX_STR: u8 = 0xa0;
    pub(super) const TRUE: u8 = 0xc3;
    pub(super) const FLOAT_64: u8 = 0xcb;
    pub(super) const UINT_8: u8 = 0xcc;
    pub(super) const UINT_16: u8 = 0xcd;
    pub(super) const UINT_32: u8 = 0xce;
    pub(super) const UINT_64: u8 = 0xcf;
    pub(super) const INT_64: u8 = 0xd3;
    pub(super) const STR_8: u8 = 0xd9;
    pub(super) const STR_16: u8 = 0xda;
    pub(super) const STR_32: u8 = 0xdb;
    pub(super) const ARRAY_16: u8 = 0xdc;
    pub(super) const ARRAY_32: u8 = 0xdd;
    pub(super) const MAP_16: u8 = 0xde;
}

// === impl Map ===

impl<'a> Map<'a> {
    /// Appends a map, which is whole once it has ended.
    pub(crate) fn begin(buffer: &'a mut Vec<u8>) -> Self {
        buffer.extend_from_slice(&[marker::MAP_16, 0, 0]);
        Self { count_at: buffer.len() - 2, buffer, count: 0 }
    }

    pub(crate) fn end(self) {
        self.buffer[self.count_at..self.count_at + 2].copy_from_slice(&self.count.to_be_bytes());
    }

    /// A whole number.
    pub(crate) fn uint(&mut self, key: &str, value: impl Into<u64>) {
        uint(self.value_of(key), value.into());
    }

    /// A whole number that is left out where it is zero.
    pub(crate) fn uint_unless_zero(&mut self, key: &str, value: u32) {
        if value != 0 {
            self.uint(key, value);
        }
    }

    /// A whole number that is left out where there is none.
    pub(crate) fn uint_if_any(&mut self, key: &str, value: Option<impl Into<u64>>) {
        if let Some(value) = value {
            self.uint(key, value);
        }
    }

    /// A whole number that may be negative.
    pub(crate) fn int(&mut self, key: &str, value: i64) {
        int(self.value_of(key), value);
    }

    /// A truth that is left out where it is false.
    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.value_of(key).push(marker::TRUE);
        }
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        text(self.value_of(key), value);
    }

    /// A text that is left out where there is none.
    pub(crate) fn text_if_any(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    /// Whatever is appended to the buffer.
    #[inline]
    pub(crate) fn value_of(&mut self, key: &str) -> &mut Vec<u8> {
        self.count += 1;
        text(self.buffer, key);
        self.buffer
    }
}

/// Appends the begin of a list of so many values.
pub(crate) fn array(buffer: &mut Vec<u8>, values: usize) {
    match values {
        0..16 => buffer.push(marker::FIX_ARRAY | values as u8),
        16..0x1_0000 => put(buffer, marker::ARRAY_16, (values as u16).to_be_bytes()),
        _ => put(buffer, marker::ARRAY_32, (values as u32).to_be_bytes()),
    }
}

pub(crate) fn uint(buffer: &mut Vec<u8>, value: u64) {
    match value {
        0..0x80 => buffer.push(value as u8),
        0x80..0x100 => put(buffer, marker::UINT_8, [value as u8]),
        0x100..0x1_0000 => put(buffer, marker::UINT_16, (value as u16).to_be_bytes()),
        0x1_0000..0x1_0000_0000 => put(buffer, marker::UINT_32, (value as u32).to_be_bytes()),
        _ => put(buffer, marker::UINT_64, value.to_be_bytes()),
    }
}

pub(crate) fn int(buffer: &mut Vec<u8>, value: i64) {
    match u64::try_from(value) {
        Ok(value) => uint(buffer, value),
        Err(_) => put(buffer, marker::INT_64, value.to_be_bytes()),
    }
}

pub(crate) fn float(buffer: &mut Vec<u8>, value: f64) {
    put(buffer, marker::FLOAT_64, value.to_be_bytes());
}

#[inline]
pub(crate) fn text(buffer: &mut Vec<u8>, value: &str) {
    match value.len() {
        length @ 0..32 => buffer.push(marker::FIX_STR | length as u8),
        length @ 32..0x100 => put(buffer, marker::STR_8, [length as u8]),
        length @ 0x100..0x1_0000 => put(buffer, marker::STR_16, (length as u16).to_be_bytes()),
        length => put(buffer, marker::STR_32, (length as u32).to_be_bytes()),
    }
    buffer.extend_from_slice(value.as_bytes());
}

/// Appends a marker and what belongs to it.
fn put<const N: usize>(buffer: &mut Vec<u8>, marker: u8, value: [u8; N]) {
    let mut bytes = [marker; 9];
    bytes[1..=N].copy_from_slice(&value);
    buffer.extend_from_slice(&bytes[..=N]);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(write: impl FnOnce(&mut Vec<u8>)) -> T {
        let mut buffer = Vec::new();
        write(&mut buffer);
        rmp_serde::from_slice(&buffer).unwrap()
    }

    #[test]
    fn values_at_every_bound_are_read_back() {
        for shift in 0..64 {
            for near in [-1, 0, 1] {
                let value = (1_u64 << shift).wrapping_add_signed(near);
                assert_eq!(read::<u64>(|buffer| uint(buffer, value)), value);
                for value in [value as i64, -(value as i64 >> 1)] {
                    assert_eq!(read::<i64>(|buffer| int(buffer, value)), value);
                }
            }
        }
        for length in [0, 1, 31, 32, 255, 256, 65_535, 65_536] {
            let long = "x".repeat(length);
            assert_eq!(read::<String>(|buffer| text(buffer, &long)), long);
            let list: Vec<u8> = read(|buffer| {
                array(buffer, length);
                (0..length).for_each(|_| uint(buffer, 7));
            });
            assert_eq!(list, vec![7; length]);
        }
        for value in [0.0, -1.5, f64::MAX, f64::NEG_INFINITY] {
            assert_eq!(read::<f64>(|buffer| float(buffer, value)).to_bits(), value.to_bits());
        }
    }

    #[test]
    fn a_map_has_what_was_not_left_out() {
        let read: BTreeMap<String, u64> = read(|buffer| {
            let mut map = Map::begin(buffer);
            map.uint("a", 1_u8);
            map.uint_unless_zero("b", 0);
            map.uint_unless_zero("c", 3);
            map.uint_if_any("d", None::<u64>);
            map.uint_if_any("e", Some(500_u64));
            map.end();
        });
        assert_eq!(read, BTreeMap::from([("a".into(), 1), ("c".into(), 3), ("e".into(), 500)]));
    }
}
