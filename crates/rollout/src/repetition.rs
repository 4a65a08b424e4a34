//! Whether a text repeats itself, as a policy does that is breaking down.

/// So often a phrase comes in a row.
const TIMES: usize = 4;
/// Bytes that the row takes at least; shorter ones are how people write.
const LEAST_BYTES: usize = 32;

/// Whether a text ends in one phrase again and again, which fills at least half of it.
///
/// Read backwards, the end of the text is a begin, and the failure function of Knuth, Morris and Pratt, "Fast Pattern
/// Matching in Strings", 1977, tells for each begin how long the phrase is that it consists of.
pub(crate) fn repeats_itself(text: &str) -> bool {
    let bytes: Vec<u8> = text.bytes().rev().collect();
    let least = LEAST_BYTES.max(bytes.len().div_ceil(2));
    // Of each begin how much of it is also its end, less than all.
    let mut overlaps: Vec<usize> = Vec::with_capacity(bytes.len());
    let mut overlap = 0;
    for (at, byte) in bytes.iter().enumerate() {
        while at > 0 && overlap > 0 && bytes[overlap] != *byte {
            overlap = overlaps[overlap - 1];
        }
        if at > 0 && bytes[overlap] == *byte {
            overlap += 1;
        }
        overlaps.push(overlap);
        let (length, phrase) = (at + 1, at + 1 - overlap);
        if length >= least && length >= TIMES * phrase {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::repeats_itself;

    #[test]
    fn a_phrase_in_a_row_at_the_end_is_found() {
        let said = "so we add the two and carry the one, ";
        for (text, repeats) in [
            (said.repeat(4), true),
            (format!("first, {}", said.repeat(5)), true),
            ("a".repeat(40), true),
            // Three times, at the begin only, too little of the whole, or nothing at all.
            (said.repeat(3), false),
            (format!("{}{}", "ha".repeat(20), "and then everything went on as it had been before"), false),
            (format!("{}{}", "x1y2z3w4v5u6".chars().rev().collect::<String>(), "ab".repeat(10)), false),
            (String::new(), false),
            ("1+2=3\n3+4=7\n7+5=12\n#12".to_owned(), false),
        ] {
            assert_eq!(repeats_itself(&text), repeats, "{text:?}");
        }
    }
}
