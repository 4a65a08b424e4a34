//! Tests that reach into the crate: models of random shape and weights.

mod gguf;
mod invariance;

use std::borrow::Cow;

use safetensors::tensor::{Dtype, TensorView};

use crate::checkpoint::Files;
use crate::gguf::gguf_name;
use crate::model::Model;
use crate::sampling::uniform;
pub(crate) use gguf::{GgufFile, random_values};

/// The shape of a small Llama.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) tied: bool,
}

impl Shape {
    /// A model of this shape with weights that are a function of `seed`.
    pub(crate) fn model(self, seed: u64) -> Model {
        Model::load(&self.files(seed)).unwrap()
    }

    fn files(self, seed: u64) -> Files {
        let Files::Memory(bundled) = Files::bundled() else { unreachable!() };
        let tokenizer = bundled.into_iter().find(|file| file.0 == "tokenizer.json").unwrap();
        Files::Memory(vec![
            ("config.json", self.config().into_bytes().into()),
            tokenizer,
            ("model.safetensors", self.weights(seed)),
        ])
    }

    fn config(self) -> String {
        serde_json::json!({
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.kv_heads * self.group,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
        })
        .to_string()
    }

    /// A model of this shape from a GGUF whose matrices are each of another type, as a function of `seed`.
    pub(crate) fn quantized(self, seed: u64) -> Model {
        let mut file = GgufFile::default();
        file.text("general.architecture", "llama");
        for (key, size) in [
            ("context_length", 128),
            ("embedding_length", self.hidden),
            ("block_count", self.layers),
            ("feed_forward_length", self.intermediate),
            ("attention.head_count", self.kv_heads * self.group),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
        ] {
            file.u32(&format!("llama.{key}"), size as u32);
        }
        file.tokenizer(&(0..self.vocab).map(|id| format!("t{id}")).collect::<Vec<_>>(), self.vocab);
        let mut counter = 0;
        let mut random = || {
            counter += 1;
            uniform(seed, counter)
        };
        for (name, shape) in self.tensors() {
            let columns = *shape.last().unwrap();
            let kinds: &[u32] = match columns {
                _ if shape.len() == 1 => &[0],
                _ if columns % 256 == 0 => &[2, 3, 8, 12, 14],
                _ if columns % 32 == 0 => &[1, 2, 3, 8],
                _ => &[0, 1, 30],
            };
            let kind = kinds[(random() * kinds.len() as f64) as usize];
            let size = 1.5 / (columns as f32).sqrt();
            let data = random_values(kind, shape.iter().product(), size, &mut random);
            file.tensor(&gguf_name(&name).unwrap(), &shape, (kind, &data));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, file.into_bytes()).unwrap();
        Model::open(&path).unwrap()
    }

    fn weights(self, seed: u64) -> Cow<'static, [u8]> {
        let shapes = self.tensors();
        let mut counter = 0;
        let data: Vec<Vec<u8>> = shapes
            .iter()
            .map(|(_, shape)| {
                let scale = 3.0 / (*shape.last().unwrap() as f64).sqrt();
                let mut value = || {
                    counter += 1;
                    ((uniform(seed, counter) - 0.5) * scale) as f32
                };
                (0..shape.iter().product()).flat_map(|_| value().to_le_bytes()).collect()
            })
            .collect();
        let tensors = shapes.iter().zip(&data).map(|((name, shape), data)| {
            (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
        });
        safetensors::serialize(tensors, None).unwrap().into()
    }

    /// Names and shapes, outermost first.
    fn tensors(self) -> Vec<(String, Vec<usize>)> {
        let (queries, kv) = (self.kv_heads * self.group * self.head_dim, self.kv_heads * self.head_dim);
        let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab, self.hidden])];
        for layer in 0..self.layers {
            let matrices = [
                ("self_attn.q_proj", queries, self.hidden),
                ("self_attn.k_proj", kv, self.hidden),
                ("self_attn.v_proj", kv, self.hidden),
                ("self_attn.o_proj", self.hidden, queries),
                ("mlp.gate_proj", self.intermediate, self.hidden),
                ("mlp.up_proj", self.intermediate, self.hidden),
                ("mlp.down_proj", self.hidden, self.intermediate),
            ];
            let name = |part| format!("model.layers.{layer}.{part}.weight");
            shapes.extend(matrices.map(|(part, rows, columns)| (name(part), vec![rows, columns])));
            shapes.push((name("input_layernorm"), vec![self.hidden]));
            shapes.push((name("post_attention_layernorm"), vec![self.hidden]));
        }
        shapes.push(("model.norm.weight".to_owned(), vec![self.hidden]));
        if !self.tied {
            shapes.push(("lm_head.weight".to_owned(), vec![self.vocab, self.hidden]));
        }
        shapes
    }
}
