//! What is wrong with a text that is no JSON, by the member that cannot be read.

/// The words that Python writes for numbers which JSON cannot say.
const NO_NUMBERS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// What a parser told of a text that it cannot read, with the member that the place is in: a line from 1, and so many bytes
/// into it.
pub fn not_json(told: &str, text: &[u8], (line, column): (usize, usize)) -> String {
    let line = text.split(|byte| *byte == b'\n').nth(line.saturating_sub(1)).unwrap_or_default();
    match value_at(line, column) {
        Some((field, value)) if NO_NUMBERS.contains(&value) => {
            format!("not JSON: `{field}` is {value}, and a number or null is wanted")
        }
        Some((field, _)) => format!("not JSON: {told}, in `{field}`"),
        None => format!("not JSON: {told}"),
    }
}

/// The name of the member that a place is in, and its value as far as that is one word.
fn value_at(line: &[u8], at: usize) -> Option<(&str, &str)> {
    let text = line.utf8_chunks().next()?.valid();
    let is_of_word = |char: char| char.is_ascii_alphanumeric() || "+-.".contains(char);
    let (before, _) = text.split_at_checked(at.min(text.len()))?;
    let before = before.trim_end_matches(is_of_word);
    let value = &text[before.len()..];
    let value = &value[..value.find(|char| !is_of_word(char)).unwrap_or(value.len())];
    let name = before.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    Some((&name[name.rfind('"')? + 1..], value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_member_that_cannot_be_read_is_named() {
        for (text, column, told) in [
            (r#"{"a": 1, "reward": NaN}"#, 19, "not JSON: `reward` is NaN, and a number or null is wanted"),
            (
                r#"{"reward":-Infinity}"#,
                11,
                "not JSON: `reward` is -Infinity, and a number or null is wanted",
            ),
            (r#"{"reward": yes}"#, 11, "not JSON: what, in `reward`"),
            (r#"{"reward" 1}"#, 10, "not JSON: what"),
            (r#"{"grün": nan}"#, 10, "not JSON: what, in `grün`"),
            (r#"{"a":"#, 9, "not JSON: what, in `a`"),
            ("", 0, "not JSON: what"),
            ("\u{fc}", 1, "not JSON: what"),
        ] {
            assert_eq!(not_json("what", text.as_bytes(), (1, column)), told, "{text}");
        }
        assert_eq!(not_json("what", b"{\n\"a\": x}", (2, 5)), "not JSON: what, in `a`");
        assert_eq!(not_json("what", b"\xff\xfe", (1, 1)), "not JSON: what");
    }
}
