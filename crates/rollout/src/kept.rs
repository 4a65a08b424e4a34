//! The token ids that a nucleus keeps: asked for where there is one, and checked as slime's trainer does.
//!
//! With them a trainer renormalises over the tokens that could have been drawn; a reply without them cannot be trained on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// `sampling_params.custom_params` that asks for them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct AskForKept {
    return_top_p_token_ids: bool,
}

/// Those of all tokens of a reply: base64 of little-endian int32.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Kept {
    #[serde(alias = "top_p_kept_token_ids")]
    pub(crate) top_p_token_ids: Option<String>,
    /// Where each token's begin, and after the last one's.
    #[serde(alias = "top_p_kept_token_offsets")]
    pub(crate) top_p_token_offsets: Option<String>,
}

// === impl AskForKept ===

impl AskForKept {
    /// A nucleus of everything keeps everything.
    pub(crate) fn of(top_p: f64) -> Option<Self> {
        (top_p < 1.0).then_some(Self { return_top_p_token_ids: true })
    }
}

// === impl Kept ===

impl Kept {
    /// Why they are not those of so many tokens; nothing if they are.
    pub(crate) fn trouble(&self, tokens: usize) -> Option<String> {
        let (Some(ids), Some(offsets)) = (&self.top_p_token_ids, &self.top_p_token_offsets) else {
            return Some(
                "the reply lacks top_p_token_ids, which training with top-p below 1 needs".to_owned(),
            );
        };
        let (Some(ids), Some(offsets)) = (numbers(ids), numbers(offsets)) else {
            return Some("top_p_token_ids are no base64 of int32".to_owned());
        };
        let is_whole = offsets.len() == tokens + 1
            && offsets.first() == Some(&0)
            && offsets.last().copied() == i32::try_from(ids.len()).ok()
            && offsets.is_sorted();
        (!is_whole).then(|| format!("top_p_token_ids do not fit the {tokens} tokens of the reply"))
    }
}

fn numbers(base64: &str) -> Option<Vec<i32>> {
    let bytes = STANDARD.decode(base64).ok()?;
    let (numbers, rest) = bytes.as_chunks();
    rest.is_empty().then(|| numbers.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told() {
        let encode = |numbers: &[i32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            Some(STANDARD.encode(bytes))
        };
        for (ids, offsets, trouble) in [
            (encode(&[7, 8, 9]), encode(&[0, 1, 3]), None),
            (encode(&[7, 8, 9]), None, Some("lacks")),
            (None, None, Some("lacks")),
            (Some("?".to_owned()), encode(&[0, 1, 3]), Some("no base64")),
            (Some("AAA=".to_owned()), encode(&[0, 1, 3]), Some("no base64")),
            (encode(&[7, 8, 9]), encode(&[0, 3]), Some("do not fit the 2 tokens")),
            (encode(&[7, 8, 9]), encode(&[1, 2, 3]), Some("do not fit")),
            (encode(&[7, 8, 9]), encode(&[0, 1, 2]), Some("do not fit")),
            (encode(&[7, 8, 9]), encode(&[0, 4, 3]), Some("do not fit")),
        ] {
            let kept = Kept { top_p_token_ids: ids, top_p_token_offsets: offsets };
            match (kept.trouble(2), trouble) {
                (None, None) => {}
                (Some(found), Some(expected)) if found.contains(expected) => {}
                (found, expected) => panic!("{found:?}, expected {expected:?}"),
            }
        }
        assert!(AskForKept::of(1.0).is_none() && AskForKept::of(0.9).is_some());
    }

    #[test]
    fn either_name_of_the_keys_is_read() {
        let expected = Kept {
            top_p_token_ids: Some("BwAAAA==".to_owned()),
            top_p_token_offsets: Some("AAAAAA==".to_owned()),
        };
        for (ids, offsets) in
            [("top_p_token_ids", "top_p_token_offsets"), ("top_p_kept_token_ids", "top_p_kept_token_offsets")]
        {
            let json = format!(r#"{{"{ids}": "BwAAAA==", "{offsets}": "AAAAAA==", "completion_tokens": 1}}"#);
            assert_eq!(serde_json::from_str::<Kept>(&json).unwrap(), expected);
        }
    }
}
