//! Tests that reach into the crate: models of random shape and weights.

mod invariance;

use std::borrow::Cow;

use safetensors::tensor::{Dtype, TensorView};

use crate::checkpoint::Files;
use crate::model::Model;
use crate::sampling::uniform;

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

    fn weights(self, seed: u64) -> Cow<'static, [u8]> {
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
}
