//! More kept tokens than a metadata row holds.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::lifecycle::numbers;
use crate::support::{Pair, Server};

/// A checkpoint of zeros, to which all of its 5000 tokens are equally likely.
fn checkpoint(dir: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 5000, "hidden_size": 16,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let tokenizer = "../model/assets/chained-addition/tokenizer.json";
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(tokenizer), dir.join("tokenizer.json")).unwrap();
    let (mut header, mut end) = (Map::new(), 0);
    let mut add = |name: &str, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * 4;
        let place = json!({"dtype": "F32", "shape": shape, "data_offsets": [end, end + bytes]});
        header.insert(format!("model.{name}.weight"), place);
        end += bytes;
    };
    add("embed_tokens", &[5000, 16]);
    for part in ["input_layernorm", "post_attention_layernorm"] {
        add(&format!("layers.0.{part}"), &[16]);
    }
    for part in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
    {
        add(&format!("layers.0.{part}_proj"), &[16, 16]);
    }
    add("norm", &[16]);
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + end, 0);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_kept_tokens_than_a_row_holds_are_the_sampled_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path());
    let args = ["--model-path", dir.path().to_str().unwrap()];
    let (alone, pair) = (Server::start(&args).await, Pair::start(&args).await);
    let body = json!({
        "input_ids": [1, 2, 3], "return_logprob": true,
        "sampling_params": {
            "max_new_tokens": 3, "top_p": 0.99, "ignore_eos": true, "sampling_seed": 1,
            "custom_params": {"return_top_p_token_ids": true},
        },
    });
    let (whole, (_, decode)) = (alone.generate(&body).await, pair.generate(&body).await);
    assert_eq!(decode["output_ids"], whole["output_ids"]);
    let kept = |reply: &Value| {
        let of = |name: &str| numbers(&reply["meta_info"][name]);
        (of("top_p_token_ids"), of("top_p_token_offsets"))
    };
    let ((ids, offsets), (paired_ids, paired_offsets)) = (kept(&whole), kept(&decode));
    let counts = |offsets: &[i32]| offsets.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    let (all, told) = (counts(&offsets), counts(&paired_offsets));
    assert!(all.len() == 3 && all.iter().all(|count| (4097..5000).contains(count)), "{all:?}");
    // The first comes by the row, the others are decode's own.
    assert_eq!(told, [1, all[1], all[2]]);
    assert_eq!(json!(paired_ids[0]), decode["output_ids"][0]);
    assert_eq!(paired_ids[1..], ids[all[0] as usize..]);
    pair.until_free().await;
}
