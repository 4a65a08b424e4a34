//! Engines as separate processes: what they say on stderr, and what their environment does not change.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails here fails its test")]

mod common;

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{Server, get, post};
use serde_json::{Map, Value, json};

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

/// The numbers of a base64 list of little-endian int32.
fn numbers(list: &Value) -> Vec<i32> {
    let bytes = STANDARD.decode(list.as_str().unwrap_or_else(|| panic!("no list: {list}"))).unwrap();
    bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// A prefill and a decode engine.
struct Pair {
    prefill: Server,
    decode: Server,
    bootstrap_port: Value,
}

impl Pair {
    async fn start(environment: &[(&str, &str)], args: &[&str]) -> Self {
        let start =
            |mode: &[&str]| Server::start_in(environment, &[&["engine", "--port", "0"], args, mode].concat());
        let prefill = start(&["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"]);
        let decode = start(&["--disaggregation-mode", "decode"]);
        let info = get(&format!("{}/server_info", prefill.url)).await.1;
        let bootstrap_port = info["internal_states"][0]["disaggregation_bootstrap_port"].clone();
        Self { prefill, decode, bootstrap_port }
    }

    /// Both halves' replies to the request of a room.
    async fn generate(&self, body: &Value, room: u64) -> (Value, Value) {
        let mut body = body.clone();
        body["bootstrap_host"] = json!("127.0.0.1");
        (body["bootstrap_port"], body["bootstrap_room"]) = (self.bootstrap_port.clone(), json!(room));
        let [prefill, decode] =
            [&self.prefill, &self.decode].map(async |server| generate(server, &body).await);
        tokio::join!(prefill, decode)
    }
}

async fn generate(server: &Server, body: &Value) -> Value {
    let (status, reply) = post(&format!("{}/generate", server.url), body).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

#[tokio::test]
async fn more_kept_tokens_than_a_row_holds_are_the_sampled_one_alone_and_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path());
    let args = ["--model-path", dir.path().to_str().unwrap()];
    let alone = Server::start(&[&["engine", "--port", "0"], &args[..]].concat());
    let mut pair = Pair::start(&[], &args).await;
    let body = json!({
        "input_ids": [1, 2, 3], "return_logprob": true, "rid": "wide",
        "sampling_params": {
            "max_new_tokens": 3, "top_p": 0.99, "ignore_eos": true, "sampling_seed": 1,
            "custom_params": {"return_top_p_token_ids": true},
        },
    });
    let (whole, (_, decode)) = (generate(&alone, &body).await, pair.generate(&body, 1).await);
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
    let expected = format!(
        "rollscope engine: warning: {} tokens were kept, a metadata row holds 4096: the sampled one alone is told, rid wide",
        all[0]
    );
    pair.prefill.hear(&expected);
}

#[tokio::test]
async fn stages_are_reported_whatever_the_environment_says_of_profiling() {
    let prefill = [
        "pd_prefill_bootstrap_queue_duration",
        "pd_prefill_bootstrap_duration",
        "pd_prefill_alloc_wait_duration",
        "pd_prefill_forward_duration",
        "pd_prefill_transfer_queue_duration",
        "pd_transfer_speed_gb_s",
        "pd_transfer_total_mb",
        "pd_prefill_retry_count",
    ];
    let decode = [
        "pd_decode_prealloc_duration",
        "pd_decode_bootstrap_duration",
        "pd_decode_alloc_wait_duration",
        "pd_decode_transfer_duration",
        "pd_decode_forward_duration",
    ];
    let body = json!({"text": "20+22=?\n", "sampling_params": {"temperature": 0, "max_new_tokens": 8}});
    for value in ["0", "1", "false", "true"] {
        let pair = Pair::start(&[("SLIME_ENABLE_PROFILING", value)], &["--model-path", "bundled"]).await;
        let (by_prefill, by_decode) = pair.generate(&body, 1).await;
        for (reply, expected) in [(by_prefill, &prefill[..]), (by_decode, &decode[..])] {
            let meta = reply["meta_info"].as_object().unwrap();
            let mut told: Vec<_> = meta.keys().filter(|name| name.starts_with("pd_")).collect();
            let mut expected = expected.to_vec();
            told.sort();
            expected.sort_unstable();
            assert_eq!(told, expected, "{value}");
        }
    }
}
