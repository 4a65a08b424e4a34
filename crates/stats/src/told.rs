//! Texts of the user's as parts of the names of numbers.

use std::borrow::Cow;

/// Characters of such a part; names of numbers are limited by trackers, MLflow's to 250.
const MOST_CHARS: usize = 100;

/// A category or a data set as a part of a name: no control characters, not too long, and of what stands between slashes
/// nothing that is empty, `.` or `..`, which would be a path to somewhere else. So a name reads alike wherever numbers are
/// shown; a tracker that takes fewer characters, as MLflow, replaces the others itself.
pub(crate) fn name_part(told: &str) -> Cow<'_, str> {
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    let is_usable = told.chars().count() <= MOST_CHARS && !told.contains(char::is_control);
    if is_usable && !told.split('/').any(is_odd) {
        return Cow::Borrowed(told);
    }
    let cut: String = told.chars().take(MOST_CHARS).map(|c| if c.is_control() { '_' } else { c }).collect();
    let parts: Vec<&str> = cut.split('/').map(|part| if is_odd(part) { "_" } else { part }).collect();
    Cow::Owned(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_a_part_of_a_name() {
        let long = "x".repeat(300);
        for (told, part) in [
            ("none", "none"),
            ("math/aime 24", "math/aime 24"),
            ("...", "..."),
            ("", "_"),
            ("/", "_/_"),
            ("a//b", "a/_/b"),
            ("../x/.", "_/x/_"),
            ("a\nb\u{7f}", "a_b_"),
            (&long, &long[..100]),
        ] {
            assert_eq!(name_part(told), part, "{told:?}");
        }
    }
}
