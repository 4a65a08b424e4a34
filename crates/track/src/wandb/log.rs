//! The log that W&B's records are in: that of `LevelDB`, with a mark of seven bytes at the file's begin.

/// What a file begins with.
pub(super) const MARK: [u8; 7] = *b":W&B\xe1\xbe\x00";

/// Blocks are counted from the file's begin, mark included.
const BLOCK_BYTES: usize = 32_768;
/// Before each chunk: sum, length, type.
const HEAD_BYTES: usize = 7;

/// What a chunk is of its record.
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// The chunks of a record that begins at this offset of the file.
pub(super) fn chunks(at: u64, mut record: &[u8]) -> Vec<u8> {
    let mut at = (at % BLOCK_BYTES as u64) as usize;
    let mut bytes = Vec::with_capacity(record.len() + 2 * HEAD_BYTES);
    let mut is_first = true;
    loop {
        let left = BLOCK_BYTES - at;
        if left < HEAD_BYTES {
            bytes.resize(bytes.len() + left, 0);
            at = 0;
            continue;
        }
        let (part, rest) = record.split_at(record.len().min(left - HEAD_BYTES));
        let kind = match (is_first, rest.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        bytes.extend(sum(kind, part).to_le_bytes());
        bytes.extend((part.len() as u16).to_le_bytes());
        bytes.push(kind);
        bytes.extend(part);
        if rest.is_empty() {
            return bytes;
        }
        at = (at + HEAD_BYTES + part.len()) % BLOCK_BYTES;
        (record, is_first) = (rest, false);
    }
}

/// The whole records of a file, each with where it ends.
pub(super) fn read(content: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut records = Vec::new();
    if !content.starts_with(&MARK) {
        return records;
    }
    let (mut at, mut record) = (MARK.len(), Vec::new());
    loop {
        let left = BLOCK_BYTES - at % BLOCK_BYTES;
        if left < HEAD_BYTES {
            at += left;
        }
        let Some((kind, part)) = chunk(content.get(at..).unwrap_or_default()) else { return records };
        at += HEAD_BYTES + part.len();
        if matches!(kind, FULL | FIRST) {
            record.clear();
        }
        record.extend(part);
        if matches!(kind, FULL | LAST) {
            records.push((at, std::mem::take(&mut record)));
        }
    }
}

fn chunk(content: &[u8]) -> Option<(u8, &[u8])> {
    let (told, rest) = content.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (kind, rest) = rest.split_first()?;
    let part = rest.get(..usize::from(u16::from_le_bytes(*length)))?;
    let is_one = (FULL..=LAST).contains(kind) && sum(*kind, part) == u32::from_le_bytes(*told);
    is_one.then_some((*kind, part))
}

/// CRC-32 over the type and the bytes.
fn sum(kind: u8, part: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(part);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_size_are_read_where_they_end() {
        let sizes = [0, 1, 100, 32_740, 32_754, 32_755, 32_768, 5, 100_000, 3];
        let mut file = MARK.to_vec();
        let mut expected = Vec::new();
        for (number, size) in sizes.into_iter().enumerate() {
            let record = vec![number as u8; size];
            file.extend(chunks(file.len() as u64, &record));
            expected.push((file.len(), record));
        }
        assert_eq!(read(&file), expected);
        for cut in [file.len() - 1, file.len() - 4, expected[8].0 + 3, expected[7].0 + 40_000] {
            let whole = expected.iter().take_while(|(end, _)| *end <= cut).count();
            assert_eq!(read(&file[..cut]).len(), whole, "cut at {cut}");
        }
    }
}
