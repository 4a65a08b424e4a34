//! Values that are neither lists nor objects, and the text of strings.

use std::borrow::Cow;

use crate::error::{Malformed, Problem};

/// A value that is neither a list nor an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, `NaN` and the infinities included, as Python's writers spell them. Integers above 2^53 are
    /// rounded.
    Number(f64),
    /// A string, unescaped.
    Text(Cow<'a, str>),
}

/// Reads a number, `true`, `false` or `null`.
pub(crate) fn literal(word: &[u8]) -> Option<Scalar<'static>> {
    Some(match word {
        b"null" => Scalar::Null,
        b"true" => Scalar::Bool(true),
        b"false" => Scalar::Bool(false),
        b"NaN" => Scalar::Number(f64::NAN),
        b"Infinity" => Scalar::Number(f64::INFINITY),
        b"-Infinity" => Scalar::Number(f64::NEG_INFINITY),
        // A digit first: Rust's parser would also take `inf`, `+1` and `.5`.
        [b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => Scalar::Number(number(word)?),
        _ => return None,
    })
}

/// Reads a number as Rust's parser does. Most have few digits and no exponent: a double holds their digits and the power of
/// ten exactly, so that one division rounds as it should (Clinger, "How to read floating point numbers accurately", 1990).
fn number(word: &[u8]) -> Option<f64> {
    small_number(word).or_else(|| std::str::from_utf8(word).ok()?.parse().ok())
}

/// The number, where it is as simple as that.
fn small_number(word: &[u8]) -> Option<f64> {
    const POWERS: [f64; 16] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let unsigned = word.strip_prefix(b"-").unwrap_or(word);
    // Fifteen digits and a point; more may not fit.
    if unsigned.len() > POWERS.len() {
        return None;
    }
    let (mut digits, mut behind_point) = (0_u64, None);
    for byte in unsigned {
        match byte {
            b'0'..=b'9' => {
                digits = digits * 10 + u64::from(byte - b'0');
                behind_point = behind_point.map(|count: usize| count + 1);
            }
            b'.' if behind_point.is_none() => behind_point = Some(0),
            _ => return None,
        }
    }
    let value = digits as f64 / POWERS.get(behind_point.unwrap_or(0))?;
    Some(if unsigned.len() < word.len() { -value } else { value })
}

/// Whether a word is a number, `true`, `false` or `null`, without its value.
pub(crate) fn is_literal(word: &[u8]) -> bool {
    match word {
        [b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => is_number(word),
        _ => matches!(word, b"null" | b"true" | b"false" | b"NaN" | b"Infinity" | b"-Infinity"),
    }
}

/// `[-] digits [. [digits]] [e [sign] digits]`: what Rust's parser takes of what begins with a digit.
fn is_number(word: &[u8]) -> bool {
    split_number(word).is_some()
}

/// Whether a number or a string is as RFC 8259 has it, and any reader takes it: not `NaN`, `01` or `1.`, no number beyond a
/// double's, no half escape and no half of a pair of surrogates.
pub(crate) fn is_strict(scalar: &str) -> bool {
    match scalar.as_bytes() {
        [b'"', inside @ .., b'"'] => is_strict_text(inside),
        word => is_strict_number(word) && scalar.parse().is_ok_and(f64::is_finite),
    }
}

/// No zeros in front, and digits behind a point.
fn is_strict_number(word: &[u8]) -> bool {
    split_number(word).is_some_and(|(whole, fraction)| {
        (whole.len() == 1 || !whole.starts_with(b"0")) && fraction.is_none_or(|digits| !digits.is_empty())
    })
}

/// The digits of a number in front of its point, and those behind it.
fn split_number(word: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    if number_length(word)? < word.len() {
        return None;
    }
    let unsigned = word.strip_prefix(b"-").unwrap_or(word);
    let (whole, rest) = unsigned.split_at(digits(unsigned));
    let fraction = rest.strip_prefix(b".").map(|behind| &behind[..digits(behind)]);
    Some((whole, fraction))
}

/// Length of the number that a text begins with.
pub(crate) fn number_length(text: &[u8]) -> Option<usize> {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    let whole = few_digits(unsigned);
    let mut rest = &unsigned[whole..];
    if let [b'.', behind @ ..] = rest {
        rest = &behind[digits(behind)..];
    }
    let mut has_exponent = true;
    if let [b'e' | b'E', exponent @ ..] = rest {
        let unsigned = if let [b'+' | b'-', unsigned @ ..] = exponent { unsigned } else { exponent };
        let found = few_digits(unsigned);
        (has_exponent, rest) = (found > 0, &unsigned[found..]);
    }
    (whole > 0 && has_exponent).then_some(text.len() - rest.len())
}

/// How many digits a text begins with, where they are few as a rule: one at a time, and beyond that eight.
#[inline]
fn few_digits(text: &[u8]) -> usize {
    const FEW: usize = 4;
    let few = text.iter().take(FEW).take_while(|byte| byte.is_ascii_digit()).count();
    if few < FEW { few } else { FEW + digits(&text[FEW..]) }
}

/// How many digits a text begins with, eight at a time.
#[inline]
fn digits(text: &[u8]) -> usize {
    const BYTES: u64 = 0x0101_0101_0101_0101;
    let (words, last) = text.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        // A digit becomes its value, and six more do not make it sixteen. A carry comes only of what is no digit, and
        // only the lowest of these counts.
        let value = u64::from_le_bytes(*word) ^ (BYTES * u64::from(b'0'));
        let others = (value | value.wrapping_add(BYTES * 6)) & (BYTES * 0xF0);
        if others != 0 {
            return number * 8 + others.trailing_zeros() as usize / 8;
        }
    }
    words.len() * 8 + last.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// No bare control characters, and only escapes that stand for characters.
fn is_strict_text(inside: &[u8]) -> bool {
    if inside.iter().any(|byte| *byte < b' ') {
        return false;
    }
    let mut rest = inside;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        rest = &rest[at..];
        let Some((_, length)) = escape(rest) else { return false };
        let is_half = code_unit(rest).is_some_and(|unit| char::from_u32(unit).is_none());
        if is_half && length == UNICODE_ESCAPE_BYTES {
            return false;
        }
        rest = &rest[length..];
    }
    true
}

/// The text of a string's inside that begins at `offset` of the body. Half a surrogate pair becomes U+FFFD.
pub(crate) fn unescape(raw: Cow<'_, [u8]>, offset: usize) -> Result<Cow<'_, [u8]>, Malformed> {
    if memchr::memchr(b'\\', &raw).is_none() {
        return Ok(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = &raw[..];
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let invalid = Malformed { offset: offset + raw.len() - rest.len(), problem: Problem::Escape };
        let (character, length) = escape(rest).ok_or(invalid)?;
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        rest = &rest[length..];
    }
    text.extend_from_slice(rest);
    Ok(Cow::Owned(text))
}

/// The character that an escape at the beginning of `text` stands for, and the escape's length.
fn escape(text: &[u8]) -> Option<(char, usize)> {
    let character = match text.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode_escape(text),
        _ => return None,
    };
    Some((character, 2))
}

/// `\u` and four digits.
const UNICODE_ESCAPE_BYTES: usize = 6;

fn unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let high = code_unit(text)?;
    if let Some(character) = char::from_u32(high) {
        return Some((character, UNICODE_ESCAPE_BYTES));
    }
    if let Some(low @ 0xDC00..=0xDFFF) = code_unit(&text[UNICODE_ESCAPE_BYTES..])
        && high < 0xDC00
    {
        let scalar = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        return Some((char::from_u32(scalar)?, 2 * UNICODE_ESCAPE_BYTES));
    }
    Some((char::REPLACEMENT_CHARACTER, UNICODE_ESCAPE_BYTES))
}

/// The unit of UTF-16 that a leading `\u` and four digits stand for.
fn code_unit(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.first_chunk::<4>()?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_json_and_python() {
        for (word, value) in [
            ("0", 0.0),
            ("-12.5e-1", -1.25),
            ("1E3", 1000.0),
            ("18446744073709551615", 1.844_674_407_370_955_2e19),
            ("Infinity", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("1e999", f64::INFINITY),
        ] {
            assert_eq!(literal(word.as_bytes()), Some(Scalar::Number(value)), "{word}");
            assert!(is_literal(word.as_bytes()), "{word}");
        }
        assert!(matches!(literal(b"NaN"), Some(Scalar::Number(value)) if value.is_nan()));
        for word in ["", "nan", "inf", "+1", ".5", "-", "truely", "nul", "1x", "0x10", "--1", "'a'"] {
            assert_eq!(literal(word.as_bytes()), None, "{word}");
        }
    }

    #[test]
    fn numbers_are_those_of_rusts_parser() {
        let check = |word: &str| {
            let expected = word.parse::<f64>().ok().map(f64::to_bits);
            assert_eq!(number(word.as_bytes()).map(f64::to_bits), expected, "{word}");
        };
        for word in
            ["0", "-0", "-0.0", "1.", "-7.", "999999999999999", "9999999999999999", "0.1328473", "1e5"]
        {
            check(word);
        }
        for word in
            ["9007199254740993", "0.00000000000001", "0.000000000000001", "1760000000.123456", "1.2.3"]
        {
            check(word);
        }
        let mut digits = 1_u64;
        for _ in 0..200 {
            digits = digits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for count in 1..=17_u32 {
                let whole = (digits % 10_u64.pow(count)).to_string();
                check(&whole);
                for point in 1..whole.len() {
                    check(&format!("-{}.{}", &whole[..point], &whole[point..]));
                }
            }
        }
    }

    #[test]
    fn what_is_passed_over_is_checked_as_what_is_read() {
        let check = |word: &[u8]| {
            assert_eq!(is_literal(word), literal(word).is_some(), "{}", String::from_utf8_lossy(word));
        };
        for word in ["null", "true", "false", "NaN", "Infinity", "-Infinity", "nul", "nan", "-NaN", "-"] {
            check(word.as_bytes());
        }
        let signs = b"-+.e07";
        let mut words = vec![Vec::new()];
        for _length in 1..=6 {
            let longer = |word: &Vec<u8>| signs.map(|sign| [word, &[sign][..]].concat());
            words = words.iter().flat_map(longer).collect();
            for word in &words {
                check(word);
            }
        }
    }

    #[test]
    fn digits_end_where_a_walk_byte_by_byte_finds_it() {
        let check = |text: &[u8]| {
            let expected = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            assert_eq!([digits(text), few_digits(text)], [expected; 2], "{text:?}");
        };
        for count in 0..=20 {
            for (next, after) in (0..=u8::MAX).flat_map(|next| [b'7', b'/', 0xFF].map(|after| (next, after)))
            {
                let text = [&b"90123456789012345678"[..count], &[next], &[after; 9]].concat();
                check(&text);
                check(&text[..count]);
            }
        }
    }

    #[test]
    fn strict_is_what_serde_json_takes() {
        let check = |text: &str| {
            assert_eq!(is_strict(text), serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        };
        let mut words = vec![String::new()];
        for _length in 1..=5 {
            let longer = |word: &String| ["-", "+", ".", "e", "0", "7"].map(|sign| format!("{word}{sign}"));
            words = words.iter().flat_map(longer).collect();
            for word in &words {
                check(word);
            }
        }
        let texts =
            r#"|a\"\u00e4|\ud83d\ude00|\ud83d|\ude00|\ud83d\u0061|\x|\u12|\ufffd|\ud83d\ud83d\ude00|a	b|\"#;
        for inside in texts.split('|') {
            check(&format!("\"{inside}\""));
        }
    }

    #[test]
    fn escapes_become_characters() {
        let check = |raw: &str, text: &str| {
            assert_eq!(unescape(raw.as_bytes().into(), 0).unwrap(), text.as_bytes(), "{raw}");
        };
        check("plain", "plain");
        check(r#"a\"\\\/\b\f\n\r\tz"#, "a\"\\/\u{8}\u{c}\n\r\tz");
        check(r"\u006deta_\u0069nfo", "meta_info");
        check(r"\ud83d\ude00!", "\u{1F600}!");
        check(r"\ud83dx\ude00\ud83d\ud83d", "\u{FFFD}x\u{FFFD}\u{FFFD}\u{FFFD}");
        for (raw, offset) in [(r"ab\x", 12), (r"\u12g4", 10), (r"a\u12", 11)] {
            let error = unescape(raw.as_bytes().into(), 10).unwrap_err();
            assert_eq!(error, Malformed { offset, problem: Problem::Escape }, "{raw}");
        }
    }
}
