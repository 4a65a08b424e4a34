//! The bundled tokenizer there and back, whole and token by token.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;

use proptest::prelude::*;
use rollscope_model::{Model, TextStream, Tokenizer};

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::bundled().unwrap());

const BOS: u32 = 256;
const EOS: u32 = 257;

/// What each token shows, and what the end does.
fn stream(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
    let mut stream = TextStream::new(true);
    let mut parts: Vec<String> = tokens.iter().map(|token| stream.push(tokenizer, *token).unwrap()).collect();
    parts.push(stream.finish(tokenizer).unwrap());
    parts
}

fn bytes(text: &[u8]) -> Vec<u32> {
    text.iter().map(|byte| u32::from(*byte)).collect()
}

#[test]
fn special_tokens_are_added_recognised_and_skipped() {
    let tokenizer = MODEL.tokenizer();
    assert_eq!(tokenizer.encode("").unwrap(), [BOS]);
    assert_eq!(tokenizer.encode("1+2=?\n").unwrap(), [256, 49, 43, 50, 61, 63, 10]);
    assert_eq!(tokenizer.encode("a<|eos|>").unwrap(), [BOS, 97, EOS]);
    assert_eq!(tokenizer.decode(&[BOS, 97, EOS], true).unwrap(), "a");
    assert_eq!(tokenizer.decode(&[BOS, 97, EOS], false).unwrap(), "<|bos|>a<|eos|>");
    assert_eq!(tokenizer.decode(&[97, 4000], true).unwrap(), "a");
}

#[test]
fn a_character_appears_with_its_last_byte() {
    let parts = |text: &[u8]| stream(MODEL.tokenizer(), &bytes(text));
    assert_eq!(parts("aé".as_bytes()), ["a", "", "é", ""]);
    assert_eq!(parts("好b".as_bytes()), ["", "", "好", "b", ""]);
    assert_eq!(parts("😀".as_bytes()), ["", "", "", "😀", ""]);
    assert_eq!(parts(b"\xe5\xa5"), ["", "", "\u{fffd}"]);
    assert_eq!(parts(b"\xe5x"), ["", "\u{fffd}x", ""]);
    assert_eq!(
        parts(b"\xff\xff\xff\xff\xff"),
        ["", "", "", "\u{fffd}", "\u{fffd}", "\u{fffd}\u{fffd}\u{fffd}"]
    );
    assert_eq!(parts(&b"\xf0\x9f\x98".repeat(20)).concat(), "\u{fffd}".repeat(20));
    assert_eq!(stream(MODEL.tokenizer(), &[BOS, 97, EOS]), ["", "a", "", ""]);
    // Tokens without text among the bytes of characters that are never whole.
    let broken = [[128; 7].as_slice(), &[240, 159, BOS, BOS, 128, BOS, 240, BOS, 240, 144, 128]].concat();
    assert_eq!(stream(MODEL.tokenizer(), &broken).concat(), MODEL.tokenizer().decode(&broken, true).unwrap());
}

proptest! {
    #[test]
    fn text_comes_back(text in any::<String>()) {
        let tokens = MODEL.tokenizer().encode(&text).unwrap();
        prop_assert_eq!(tokens.len(), 1 + text.len());
        prop_assert_eq!(MODEL.tokenizer().decode(&tokens, true).unwrap(), text.clone());
        let parts = stream(MODEL.tokenizer(), &tokens);
        prop_assert_eq!(parts.concat(), text.clone());
        // A whole character is shown at once; only the genuine U+FFFD may wait.
        if !text.contains('\u{fffd}') {
            let mut shown = 0;
            for (part, length) in parts.iter().zip(0..) {
                shown += part.len();
                let whole = (0..=length).rev().find(|end| text.is_char_boundary(*end)).unwrap();
                prop_assert_eq!(shown, whole);
            }
        }
    }

    #[test]
    fn streamed_bytes_are_the_decoded_bytes(
        tokens in prop::collection::vec(
            prop_oneof![0..320_u32, 0x80..0x100_u32, prop::sample::select(vec![0xe5_u32, 0xf0, 0x9f, 0x98])],
            0..200,
        ),
    ) {
        let whole = MODEL.tokenizer().decode(&tokens, true).unwrap();
        prop_assert_eq!(stream(MODEL.tokenizer(), &tokens).concat(), whole);
    }
}
