//! Weights that are replaced, memory that is given up, and what trainers ask beside.

use std::path::{Path, PathBuf};
use std::time::Instant;

use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::{PATIENCE, Pair, SLOW, Server, endless, greedy, live};

const PROMPT: &str = "47+85+19=?\n";

fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/assets/chained-addition").join(name)
}

/// The bundled checkpoint as a directory, its files changed.
fn checkpoint(change: impl Fn(&str, Vec<u8>) -> Vec<u8>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        let bytes = std::fs::read(bundled(name)).unwrap();
        std::fs::write(dir.path().join(name), change(name, bytes)).unwrap();
    }
    dir
}

/// Another model of the same shape: every weight is halved, or some of them.
pub(crate) fn other_weights() -> TempDir {
    checkpoint(|name, mut bytes| {
        if name == "model.safetensors" {
            let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            // The sign of every second bf16.
            for byte in bytes[start..].iter_mut().skip(1).step_by(4) {
                *byte ^= 0x80;
            }
        }
        bytes
    })
}

fn long() -> Value {
    json!({"text": PROMPT, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": true}})
}

/// Lets a paused server compute once a request is there.
async fn go_on_with_one(server: &Server) {
    server.until("it is there", |load| live(load) == 1).await;
    server.post("/continue_generation", &json!({})).await;
}

fn short() -> Value {
    json!({"text": PROMPT, "sampling_params": greedy(30)})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_are_replaced_under_a_new_version() {
    let server = Server::start(&["--weight-version", "1"]).await;
    let first = server.generate(&short()).await;
    assert_eq!(first["meta_info"]["weight_version"], "1");
    let (_, snapshot) = server.post("/weights_checker", &json!({"action": "snapshot"})).await;
    let (status, same) = server.post("/weights_checker", &json!({"action": "compare"})).await;
    assert_eq!((status, &same["message"]), (StatusCode::OK, &snapshot["message"]));

    let other = other_weights();
    let body = json!({"model_path": other.path(), "weight_version": "2"});
    let (status, reply) = server.post("/update_weights_from_disk", &body).await;
    assert_eq!(
        (status, &reply["success"], &reply["num_paused_requests"]),
        (StatusCode::OK, &json!(true), &json!(0))
    );
    let second = server.generate(&short()).await;
    assert_eq!(second["meta_info"]["weight_version"], "2");
    assert_eq!(second["meta_info"]["cached_tokens"], 0);
    assert_ne!(second["output_ids"], first["output_ids"]);
    assert_eq!(server.get("/get_weight_version").await, json!({"weight_version": "2"}));
    assert_eq!(
        server.post("/weights_checker", &json!({"action": "compare"})).await.0,
        StatusCode::BAD_REQUEST
    );

    // In a pause what is held goes on with the new weights.
    let deadline = Instant::now() + PATIENCE;
    let long = long();
    let reply = loop {
        let held = async {
            go_on_with_one(&server).await;
            server.post("/pause_generation", &json!({"mode": "in_place"})).await;
            let body = json!({"model_path": "bundled", "weight_version": "3"});
            let (_, reply) = server.post("/update_weights_from_disk", &body).await;
            server.post("/continue_generation", &json!({})).await;
            reply["num_paused_requests"] == 1
        };
        server.post("/pause_generation", &json!({"mode": "in_place"})).await;
        let (reply, was_held) = tokio::join!(server.generate(&long), held);
        assert_eq!(reply["meta_info"]["completion_tokens"], 2000);
        // Unless the pause came too late for it.
        if was_held {
            break reply;
        }
        assert!(Instant::now() < deadline, "it always ends before");
        server.post("/update_weights_from_disk", &json!({"model_path": other.path()})).await;
    };
    assert_eq!(reply["meta_info"]["weight_version"], "3");
    // It began with the old ones, so nothing of it is for others.
    let mut whole = json!([256]).as_array().unwrap().clone();
    whole.extend(PROMPT.bytes().map(|byte| json!(byte)));
    whole.extend(reply["output_ids"].as_array().unwrap()[..200].iter().cloned());
    let whole = json!({"input_ids": whole, "sampling_params": greedy(1)});
    assert_eq!(server.generate(&whole).await["meta_info"]["cached_tokens"], 0);
    assert_ne!(server.generate(&whole).await["meta_info"]["cached_tokens"], 0);
    // Else the update waits for those that run, or ends them.
    let body = json!({"model_path": other.path(), "weight_version": "4"});
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let update = async {
        go_on_with_one(&server).await;
        server.post("/update_weights_from_disk", &body).await
    };
    let (reply, (status, _)) = tokio::join!(server.generate(&long), update);
    assert_eq!(
        (status, &reply["meta_info"]["completion_tokens"], &reply["meta_info"]["weight_version"]),
        (StatusCode::OK, &json!(2000), &json!("3"))
    );
    let body = json!({"model_path": "bundled", "abort_all_requests": true});
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let update = async {
        server.until("it is there", |load| live(load) == 1).await;
        server.post("/update_weights_from_disk", &body).await;
        server.post("/continue_generation", &json!({})).await;
    };
    let (reply, ()) = tokio::join!(server.generate(&long), update);
    assert_eq!(reply["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(server.generate(&short()).await["output_ids"], first["output_ids"]);
    let (_, reply) = server.post("/update_weight_version", &json!({"new_version": "5"})).await;
    assert_eq!((&reply["success"], &reply["new_version"]), (&json!(true), &json!("5")));
    assert_eq!(server.generate(&short()).await["meta_info"]["weight_version"], "5");
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_names_the_weights_that_it_was_computed_with() {
    let server = Server::start(&["--weight-version", "1"]).await;
    let mut body = long();
    body["stream"] = json!(true);
    let mut response = server.send(Method::POST, "/generate", &body.to_string()).await;
    response.body_mut().frame().await.unwrap().unwrap();
    // From here on no further token is chosen: its reply is made when the name is another one, and it is not of that.
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let rename = json!({"new_version": "2", "abort_all_requests": false});
    server.post("/update_weight_version", &rename).await;
    server.post("/abort_request", &json!({"abort_all": true})).await;
    let rest = timeout(PATIENCE, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    let rest = String::from_utf8(rest.to_vec()).unwrap();
    let last = rest.strip_suffix("\n\ndata: [DONE]\n\n").unwrap().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["meta_info"]["weight_version"], "1");
    assert_ne!(last["meta_info"]["completion_tokens"], 0);
    // What nothing was computed of is of those that are there.
    let abort = async {
        server.until("it is held", |load| live(load) == 1).await;
        server.post("/abort_request", &json!({"abort_all": true})).await;
    };
    let body = long();
    let (reply, ()) = tokio::join!(server.generate(&body), abort);
    assert_eq!(
        (&reply["meta_info"]["completion_tokens"], &reply["meta_info"]["weight_version"]),
        (&json!(0), &json!("2"))
    );
    server.post("/continue_generation", &json!({})).await;
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_stay_for_those_that_have_lost_their_pages() {
    // Two of them do not fit, so that the second loses its pages until the first has ended.
    let tight = ["--max-total-tokens", "800", "--num-reserved-decode-tokens", "0", "--weight-version", "1"];
    let server = Server::start(&tight).await;
    let sampling = json!({"max_new_tokens": 600, "ignore_eos": true, "sampling_seed": 3});
    let alone = [PROMPT, "1+2=?\n"].map(|text| json!({"text": text, "sampling_params": sampling}));
    let expected = [server.generate(&alone[0]).await, server.generate(&alone[1]).await];
    let body = json!({"text": [PROMPT, "1+2=?\n"], "sampling_params": sampling});
    server.post("/pause_generation", &json!({"mode": "in_place"})).await;
    let other = other_weights();
    let update = async {
        server.until("both are there", |load| live(load) == 2).await;
        server.post("/continue_generation", &json!({})).await;
        let body = json!({"model_path": other.path(), "weight_version": "2"});
        assert_eq!(server.post("/update_weights_from_disk", &body).await.0, StatusCode::OK);
    };
    let (replies, ()) = tokio::join!(server.generate(&body), update);
    for (reply, expected) in replies.as_array().unwrap().iter().zip(expected) {
        assert!(reply["output_ids"] == expected["output_ids"], "some were chosen with the other weights");
        assert_eq!(reply["meta_info"]["weight_version"], "1");
    }
    assert_ne!(replies[1]["meta_info"]["num_retractions"], 0);
    assert_eq!(server.generate(&short()).await["meta_info"]["weight_version"], "2");
    server.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_made_with_other_weights_is_not_kept() {
    // Files that change while their memory is given up.
    let dir = checkpoint(|_, bytes| bytes);
    let server =
        Server::start(&["--model-path", dir.path().to_str().unwrap(), "--served-model-name", "adder"]).await;
    let body = json!({"input_ids": vec![50; 100], "sampling_params": greedy(8)});
    server.generate(&body).await;
    let (release, resume) = ("/release_memory_occupation", "/resume_memory_occupation");
    let weights = json!({"tags": ["weights"]});
    for path in [release, resume] {
        assert_eq!(server.post(path, &weights).await.0, StatusCode::OK);
    }
    assert_eq!(server.generate(&body).await["meta_info"]["cached_tokens"], 96);
    let held = async || {
        let info = server.get("/server_info").await;
        info["internal_states"][0]["memory_usage"]["weight"].clone()
    };
    let before = held().await;
    server.post(release, &weights).await;
    assert_eq!(held().await, json!(0.0));
    let other = other_weights();
    std::fs::copy(other.path().join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    server.post(resume, &weights).await;
    assert_eq!(held().await, before);
    let reply = server.generate(&body).await;
    assert_eq!(reply["meta_info"]["cached_tokens"], 0);
    let fresh = Server::start(&["--model-path", other.path().to_str().unwrap()]).await;
    assert_eq!(reply["output_ids"], fresh.generate(&body).await["output_ids"]);
    let (_, page) = server.text(Method::GET, "/metrics", "").await;
    assert!(page.contains("sglang:cached_tokens_total{model_name=\"adder\""), "{page}");
    // Half of a pair that was agreed on: to be tried again, not a fault.
    let pair = Pair::start(&[]).await;
    let update = async {
        let in_transfer = |load: &Value| load["disaggregation"]["decode_transfer_queue_reqs"] == 1;
        pair.decode.until("it is in transfer", in_transfer).await;
        pair.decode.post("/pause_generation", &json!({"mode": "in_place"})).await;
        let body = json!({"model_path": other.path()});
        assert_eq!(pair.decode.post("/update_weights_from_disk", &body).await.0, StatusCode::OK);
    };
    let body = pair.paired(&short());
    let ((status, reply), ()) = tokio::join!(pair.decode.post("/generate", &body), update);
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && reply.to_string().contains("weights were replaced"),
        "{reply}"
    );
    // The other half does not wait for it.
    let (status, reply) = pair.prefill.post("/generate", &body).await;
    let told = "decode server gave the request up: the weights were replaced";
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && reply.to_string().contains(told), "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_cannot_be_is_refused_and_changes_nothing() {
    let server = Server::start(&[]).await;
    let expected = server.generate(&short()).await;
    let cut = checkpoint(
        |name, bytes| {
            if name == "model.safetensors" { bytes[..bytes.len() / 2].to_vec() } else { bytes }
        },
    );
    let garbage = checkpoint(|name, bytes| if name == "config.json" { b"{".to_vec() } else { bytes });
    let base = checkpoint(|name, bytes| {
        if name == "config.json" {
            String::from_utf8(bytes)
                .unwrap()
                .replace("\"rope_theta\": 10000", "\"rope_theta\": 20000")
                .into_bytes()
        } else {
            bytes
        }
    });
    for (body, reason) in [
        (json!({"model_path": "/nowhere"}), "no model directory at /nowhere"),
        (json!({"model_path": cut.path()}), "malformed safetensors"),
        (json!({"model_path": garbage.path()}), "malformed"),
        (json!({"model_path": base.path()}), "of another shape"),
    ] {
        let (status, reply) = server.post("/update_weights_from_disk", &body).await;
        assert_eq!((status, &reply["success"]), (StatusCode::BAD_REQUEST, &json!(false)), "{reply}");
        assert!(reply["message"].as_str().unwrap().contains(reason), "{reason}: {reply}");
    }
    for (path, body, reason) in [
        ("/update_weights_from_disk", json!({}), "model_path is missing"),
        (
            "/update_weights_from_disk",
            json!({"model_path": "bundled", "load_format": "dummy"}),
            "load_format",
        ),
        ("/update_weights_from_tensor", json!({}), "update_weights_from_tensor is not supported"),
        ("/update_weights_from_distributed", json!({}), "update_weights_from_distributed is not supported"),
        ("/init_weights_update_group", json!({}), "init_weights_update_group is not supported"),
        ("/destroy_weights_update_group", json!({}), "destroy_weights_update_group is not supported"),
        ("/pull_weights", json!({"target_version": 1}), "pull_weights is not supported"),
        ("/weights_checker", json!({"action": "reset_tensors"}), "action must be"),
        ("/post_process_weights", json!({"post_process_quantization": true}), "post_process_quantization"),
        ("/release_memory_occupation", json!({"tags": ["gold"]}), "got gold"),
        ("/resume_memory_occupation", json!({"tags": "weights"}), "tags"),
    ] {
        let (status, reply) = server.text(Method::POST, path, &body.to_string()).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.contains(reason), "{path}: {status} {reply}");
    }
    assert_eq!(server.post("/post_process_weights", &json!({})).await.0, StatusCode::OK);
    assert_eq!(server.generate(&short()).await["output_ids"], expected["output_ids"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_not_taken_from_those_that_need_it() {
    let slow = Pair::start(&SLOW).await;
    let refused = async {
        slow.decode.until("it runs", |load| load["num_running_reqs"] == 1).await;
        let (status, reply) = slow.decode.post("/release_memory_occupation", &json!({})).await;
        assert!(status == StatusCode::BAD_REQUEST && reply.to_string().contains("1 request is"), "{reply}");
        slow.decode.post("/abort_request", &json!({"abort_all": true})).await;
    };
    let body = slow.paired(&endless("it"));
    tokio::join!(slow.prefill.post("/generate", &body), slow.decode.post("/generate", &body), refused);
    slow.until_free().await;
    let pair = Pair::start(&[]).await;
    let expected = pair.generate(&short()).await.1;
    // A paused one ends its requests, and the other half learns of it.
    let ended = async {
        pair.decode.until("prefill waits for no one", |load| live(load) == 1).await;
        pair.decode.post("/pause_generation", &json!({"mode": "in_place"})).await;
        let (status, reply) = pair.decode.post("/release_memory_occupation", &json!({})).await;
        assert_eq!((status, reply), (StatusCode::OK, Value::Null));
    };
    let body = pair.paired(&short());
    let ((status, reply), ()) = tokio::join!(pair.decode.post("/generate", &body), ended);
    // Not a fault of the server's: who counts those does not count this.
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && reply.to_string().contains("memory was released"),
        "{reply}"
    );
    let (status, reply) = pair.prefill.post("/generate", &body).await;
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && reply.to_string().contains("decode server gave"),
        "{reply}"
    );
    // Twice is once, in any order of tags, and what comes meanwhile waits.
    for tags in [json!(["kv_cache"]), json!(null)] {
        let (status, _) = pair.decode.post("/release_memory_occupation", &json!({"tags": tags})).await;
        assert_eq!(status, StatusCode::OK);
    }
    pair.decode.post("/continue_generation", &json!({})).await;
    let body = pair.paired(&short());
    let resume = async {
        pair.decode.until("it waits", |load| live(load) == 1).await;
        for tags in [json!(["weights"]), json!(["weights"]), json!(["kv_cache", "cuda_graph"]), json!(null)] {
            let (status, reply) = pair.decode.post("/resume_memory_occupation", &json!({"tags": tags})).await;
            assert_eq!((status, reply), (StatusCode::OK, Value::Null));
        }
    };
    let (_, decode, ()) = tokio::join!(pair.prefill.generate(&body), pair.decode.generate(&body), resume);
    assert_eq!(decode["output_ids"], expected["output_ids"]);
    pair.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_of_different_weights_refuse_each_other() {
    let pair = Pair::start(&[]).await;
    pair.generate(&short()).await;
    let other = other_weights();
    let body = json!({"model_path": other.path()});
    assert_eq!(pair.prefill.post("/update_weights_from_disk", &body).await.0, StatusCode::OK);
    // A request that comes before decode has heard of it fails with that. Either way it is nobody's fault, and may be tried again.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, reply) = pair.decode.post("/generate", &pair.paired(&short())).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{reply}");
        if reply.to_string().contains("model fingerprint differs") {
            break;
        }
        let told = reply.to_string().contains("ended: the weights were replaced");
        assert!(told && Instant::now() < deadline, "{reply}");
    }
    assert_eq!(pair.decode.post("/update_weights_from_disk", &body).await.0, StatusCode::OK);
    let alone = Server::start(&["--model-path", other.path().to_str().unwrap()]).await;
    let (_, decode) = pair.generate(&short()).await;
    assert_eq!(decode["output_ids"], alone.generate(&short()).await["output_ids"]);
    pair.decode.until_free().await;
}
