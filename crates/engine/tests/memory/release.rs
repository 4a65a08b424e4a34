//! A server whose memory is released and resumed, and what the process holds of it.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::json;

use crate::support::{Pair, Server};

/// Resident memory of this process, MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
}

/// A checkpoint of 17 million weights, all zero: 65 MiB in memory.
fn checkpoint(dir: &Path) {
    let (hidden, inner, layers, kv) = (512, 2048, 4, 512);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": 320, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let tokenizer = "../model/assets/chained-addition/tokenizer.json";
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(tokenizer), dir.join("tokenizer.json")).unwrap();
    let mut tensors =
        vec![("model.embed_tokens".to_owned(), vec![320, hidden]), ("model.norm".to_owned(), vec![hidden])];
    for layer in 0..layers {
        for (part, shape) in [
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
        ] {
            tensors.push((format!("model.layers.{layer}.{part}"), shape));
        }
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0_usize);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<usize>() * 2;
        let place = json!({"dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes]});
        header.insert(format!("{name}.weight"), place);
        end += bytes;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
}

/// Gives up the memory of a server that has computed two thousand tokens, part by part.
async fn release(server: &Server) {
    // They are 31 MiB; the others hold no more than they need.
    for (tag, at_least) in [("kv_cache", 24), ("weights", 45)] {
        let before = resident_mib();
        server.post("/release_memory_occupation", &json!({"tags": [tag]})).await;
        let released = resident_mib();
        assert!(released + at_least <= before, "{tag}: {before} MiB before, {released} MiB after");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_memory_goes_back_to_the_system_and_returns() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path());
    // 16 KiB a token.
    let server =
        Server::start(&["--model-path", dir.path().to_str().unwrap(), "--max-total-tokens", "4096"]).await;
    let prompts: Vec<Vec<usize>> =
        (0..2).map(|first| (0..1000).map(|place| (first + place) % 250).collect()).collect();
    let body = json!({"input_ids": prompts, "sampling_params": {"max_new_tokens": 1, "sampling_seed": 1}});
    server.generate(&body).await;
    release(&server).await;
    let released = resident_mib();
    server.post("/resume_memory_occupation", &json!({"tags": ["weights"]})).await;
    server.post("/resume_memory_occupation", &json!({"tags": ["kv_cache"]})).await;
    server.generate(&json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}})).await;
    assert!(resident_mib() >= released + 45);
    drop(server);
    // The halves of a pair, each with weights and pages of its own.
    let pair =
        Pair::start(&["--model-path", dir.path().to_str().unwrap(), "--max-total-tokens", "4096"]).await;
    let (_, expected) = pair.generate(&body).await;
    let halves = [&pair.prefill, &pair.decode];
    for half in halves {
        release(half).await;
    }
    let released = resident_mib();
    for half in halves {
        half.post("/resume_memory_occupation", &json!({})).await;
    }
    let (_, found) = pair.generate(&body).await;
    for (found, expected) in found.as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
        assert_eq!(found["output_ids"], expected["output_ids"]);
    }
    assert!(resident_mib() >= released + 90);
}
