//! What a worker says of itself, without its secrets: SGLang's `/server_info` tells all of the server's options, keys and
//! passwords among them, at whatever depth.
//!
//! What is no JSON is read all the same, since a client may be more lenient than the gateway: where a string ends is searched
//! for without looking at what it has in it.

use memchr::memchr2;
use serde::de::IgnoredAny;
use serde_json::Deserializer;

/// In names, without `_` and `-`.
const SECRET_WORDS: [&str; 7] =
    ["apikey", "password", "passwd", "secret", "credential", "authorization", "privatekey"];
/// Names of tokens that are secrets, without `_` and `-`. Others are pieces of text (`bos_token`).
const SECRET_TOKENS: [&str; 8] = [
    "accesstoken",
    "apitoken",
    "authtoken",
    "bearertoken",
    "hftoken",
    "refreshtoken",
    "sessiontoken",
    "token",
];

/// The same text with `null` for the value of each member that is named as secrets are. All else stays byte for byte.
pub(crate) fn without_secrets(json: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(json.len());
    let mut at = 0;
    while let Some(quote) = memchr::memchr(b'"', &json[at..]).map(|offset| at + offset) {
        let end = text_end(json, quote);
        shown.extend_from_slice(&json[at..end]);
        at = end;
        // Of all strings only names have a colon behind them.
        let Some(value) = behind_colon(json, end) else { continue };
        if is_secret(&json[quote..end], json.get(value)) {
            shown.extend_from_slice(&json[end..value]);
            shown.extend_from_slice(b"null");
            at = value_end(json, value);
        }
    }
    shown.extend_from_slice(&json[at..]);
    shown
}

/// Where a string ends, quotes included, that begins here; where everything does if it does not end.
fn text_end(json: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(offset) = json.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += offset;
        if json[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    json.len()
}

/// Where a value ends; where everything does if it is none.
fn value_end(json: &[u8], begin: usize) -> usize {
    if json.get(begin) == Some(&b'"') {
        return text_end(json, begin);
    }
    let mut values = Deserializer::from_slice(&json[begin..]).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => begin + values.byte_offset(),
        Some(Err(_)) | None => json.len(),
    }
}

/// Where the value of a name begins that ends here, if it is a name.
fn behind_colon(json: &[u8], end: usize) -> Option<usize> {
    let next = |from: usize| {
        json[from..].iter().position(|byte| !byte.is_ascii_whitespace()).map(|offset| from + offset)
    };
    let colon = next(end).filter(|at| json[*at] == b':')?;
    next(colon + 1)
}

fn is_secret(name: &[u8], value_begin: Option<&u8>) -> bool {
    let name = serde_json::from_slice(name).unwrap_or_else(|_| String::from_utf8_lossy(name).into_owned());
    let name = name.to_ascii_lowercase().replace(['_', '-', '"'], "");
    // Tokens are as a rule numbers of them.
    SECRET_WORDS.iter().any(|word| name.contains(word))
        || name == "auth"
        || (SECRET_TOKENS.contains(&&*name) && value_begin == Some(&b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_and_nothing_else() {
        for (given, shown) in [
            (r#"{"api_key":"K","port":1}"#, r#"{"api_key":null,"port":1}"#),
            (r#"{"admin_api_key" : "a\"b" , "x":[1.0e5]}"#, r#"{"admin_api_key" : null , "x":[1.0e5]}"#),
            (
                r#"{"internal_states":[{"api\u005fkey":"K"}]}"#,
                r#"{"internal_states":[{"api\u005fkey":null}]}"#,
            ),
            (r#"{"ssl_keyfile_password":7}"#, r#"{"ssl_keyfile_password":null}"#),
            (r#"{"api_key":{"a":["K"]},"b":2}"#, r#"{"api_key":null,"b":2}"#),
            (r#"{"hf_token":"T","new_token":5}"#, r#"{"hf_token":null,"new_token":5}"#),
            (r#"{"bos_token":"<s>","auth_token":"T"}"#, r#"{"bos_token":"<s>","auth_token":null}"#),
            (r#"{"apiKey":"K","api-key":"K"}"#, r#"{"apiKey":null,"api-key":null}"#),
            (r#"{"token":"K","auth":["u","p"]}"#, r#"{"token":null,"auth":null}"#),
            ("{\"a\":\"\t\",\"api_key\":\"K\"}", "{\"a\":\"\t\",\"api_key\":null}"),
            (r#"{"a":"\x\"","api_key":"K"}"#, r#"{"a":"\x\"","api_key":null}"#),
            (r#"{"api_key\x":"K"}"#, r#"{"api_key\x":null}"#),
            ("{\"api_key\":\"K\t\",\"a\":1}", "{\"api_key\":null,\"a\":1}"),
            (r#"{'a':1,"api_key":"K"}"#, r#"{'a':1,"api_key":null}"#),
            (r#"{"a":"cut\"#, r#"{"a":"cut\"#),
            (r#"{"name":"api_key","api_key":null}"#, r#"{"name":"api_key","api_key":null}"#),
            (r#"{"a":"\"api_key\":\"x\""}"#, r#"{"a":"\"api_key\":\"x\""}"#),
            (r#"{"api_key":"cut"#, r#"{"api_key":null"#),
            ("{\"api_key\":", "{\"api_key\":"),
            ("no JSON", "no JSON"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8(without_secrets(given.as_bytes())).unwrap(), shown, "{given}");
        }
    }
}
