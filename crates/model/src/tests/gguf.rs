//! GGUF files for tests, written field by field.

use half::f16;

/// A file under construction: metadata first, then tensors.
#[derive(Default)]
pub(crate) struct GgufFile {
    entries: u64,
    metadata: Vec<u8>,
    tensors: u64,
    infos: Vec<u8>,
    data: Vec<u8>,
}

const ALIGNMENT: usize = 32;

// === impl GgufFile ===

impl GgufFile {
    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.entry(key, 4).extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.entry(key, 6).extend(value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.entry(key, 7).push(u8::from(value));
    }

    pub(crate) fn text(&mut self, key: &str, text: &str) {
        put_text(self.entry(key, 8), text);
    }

    pub(crate) fn texts(&mut self, key: &str, texts: &[String]) {
        let metadata = self.entry(key, 9);
        metadata.extend(8_u32.to_le_bytes());
        metadata.extend((texts.len() as u64).to_le_bytes());
        for text in texts {
            put_text(metadata, text);
        }
    }

    pub(crate) fn i32s(&mut self, key: &str, values: &[i32]) {
        let metadata = self.entry(key, 9);
        metadata.extend(5_u32.to_le_bytes());
        metadata.extend((values.len() as u64).to_le_bytes());
        metadata.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// A tokenizer that pairs nothing; all tokens from the `first_control`-th on are no text.
    pub(crate) fn tokenizer(&mut self, tokens: &[String], first_control: usize) {
        self.text("tokenizer.ggml.model", "gpt2");
        self.text("tokenizer.ggml.pre", "gpt-2");
        self.texts("tokenizer.ggml.tokens", tokens);
        self.texts("tokenizer.ggml.merges", &[]);
        let types = (0..tokens.len()).map(|id| if id < first_control { 1 } else { 3 });
        self.i32s("tokenizer.ggml.token_type", &types.collect::<Vec<i32>>());
    }

    /// A tensor, its shape outermost first.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize], (kind, data): (u32, &[u8])) {
        self.tensors += 1;
        put_text(&mut self.infos, name);
        self.infos.extend((shape.len() as u32).to_le_bytes());
        self.infos.extend(shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        self.infos.extend(kind.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(data);
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(self.tensors.to_le_bytes());
        bytes.extend(self.entries.to_le_bytes());
        bytes.extend(self.metadata);
        bytes.extend(self.infos);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes.extend(self.data);
        bytes
    }

    fn entry(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.entries += 1;
        put_text(&mut self.metadata, key);
        self.metadata.extend(kind.to_le_bytes());
        &mut self.metadata
    }
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

/// So many values of a type in random bytes, but for scales and offsets: those make values of about `size`.
///
/// # Panics
/// If the type is none of those that the crate reads, or the count is not one of whole blocks.
pub(crate) fn random_values(kind: u32, count: usize, size: f32, mut random: impl FnMut() -> f64) -> Vec<u8> {
    // Values and bytes of a block, and where its scales and offsets are: with what 1 of each is worth.
    let (values, bytes, halves): (usize, usize, &[(usize, f32)]) = match kind {
        0 | 1 | 30 => (1, if kind == 0 { 4 } else { 2 }, &[]),
        2 => (32, 18, &[(0, 8.0)]),
        3 => (32, 20, &[(0, 15.0), (2, -1.0)]),
        8 => (32, 34, &[(0, 128.0)]),
        12 => (256, 144, &[(0, 63.0 * 15.0), (2, 63.0)]),
        14 => (256, 210, &[(208, 128.0 * 32.0)]),
        _ => unreachable!("{kind}"),
    };
    assert_eq!(count % values, 0, "no whole blocks");
    let mut data = Vec::with_capacity(count / values * bytes);
    for _ in 0..count / values {
        let value = (2.0 * random() - 1.0) as f32 * size;
        match kind {
            0 => data.extend(value.to_le_bytes()),
            1 => data.extend(f16::from_f32(value).to_le_bytes()),
            30 => data.extend(half::bf16::from_f32(value).to_le_bytes()),
            _ => {
                let start = data.len();
                data.extend((0..bytes).map(|_| (random() * 256.0) as u8));
                for (at, worth) in halves {
                    let half = f16::from_f32((0.5 + 0.5 * random() as f32) * size / worth);
                    data[start + at..start + at + 2].copy_from_slice(&half.to_le_bytes());
                }
            }
        }
    }
    data
}
