//! The scheduler by itself, where no client could hold what is to be seen.

use std::sync::Arc;
use std::time::Duration;

use rollscope_config::{Options, Published};
use rollscope_model::sampling::SamplingParams;
use rollscope_model::{KvPool, Model};

use super::{Limits, Means, PauseMode, Rooms, SchedulerThread};
use crate::clock::Clock;
use crate::disagg::Identity;
use crate::options::{DisaggregationMode, EngineOptions};
use crate::request::{GenerateSpec, Sampling};
use crate::sim::CostModel;
use crate::stamps::Stamps;
use crate::warn::Warnings;

const TOKENS: usize = 100_000;

/// A server alone, of which each token takes a millisecond.
fn slow() -> SchedulerThread {
    let costs = r#"{"prefill": {"base_s": 0, "per_token_s": 0}, "context_length": 100000,
        "decode": {"base_s": 0.001, "per_request_s": 0, "per_kv_token_s": 0}}"#;
    let model = Arc::new(Model::simulated(TOKENS).unwrap());
    let kv = KvPool::new(model.config(), TOKENS / 16, 16).unwrap();
    let identity = Identity {
        model: Arc::clone(&model),
        dtype: "float32",
        page_tokens: 16,
        page_bytes: kv.page_bytes() as u64,
        row_bytes: 0,
    };
    let means = Means {
        model,
        kv,
        clock: Arc::new(Clock::new()),
        random_seed: 0,
        simulated: Some(serde_json::from_str::<CostModel>(costs).unwrap()),
        rooms: Rooms::default(),
        identity: Arc::new(identity),
        publisher: None,
        published: Published::publish(EngineOptions::from_args(["--model-path", "bundled"]).unwrap()),
        warnings: Warnings::start(),
    };
    let limits = Limits {
        mode: DisaggregationMode::Null,
        max_running: 4,
        max_queued: 4,
        chunk_tokens: 512,
        reserved_decode_tokens: 16,
        prefix_cache: false,
        bootstrap_timeout: Duration::MAX,
        waiting_timeout: Duration::MAX,
        transfer_timeout: Duration::MAX,
        prefill_timing: false,
    };
    SchedulerThread::start(means, limits).unwrap()
}

/// A request that takes a minute and a half.
pub(super) fn endless() -> GenerateSpec {
    GenerateSpec {
        rid: "endless".to_owned(),
        batch_rid: None,
        input_ids: vec![49; 3],
        sampling: Sampling {
            params: SamplingParams::default(),
            seeded: true,
            min_new_tokens: 0,
            stop: Arc::default(),
            stop_token_ids: Arc::default(),
            skip_special_tokens: true,
            no_stop_trim: false,
        },
        max_new_tokens: TOKENS - 10,
        logprobs: None,
        dp_rank: None,
        tells_kept: false,
        room: None,
        extra_key: None,
        stamps: Stamps::new(Clock::new().now()),
    }
}

#[tokio::test]
async fn nothing_is_computed_while_weights_are_replaced() {
    let scheduler = slow();
    let postbox = &scheduler.postbox;
    let mut listener = postbox.generate(endless()).await.unwrap();
    listener.changed().await;
    postbox.pause(PauseMode::InPlace).await.unwrap();
    assert_eq!(postbox.quiesce().await.unwrap(), 1);
    // The end of the pause is not the end of that.
    postbox.go_on().await.unwrap();
    let made = listener.read(|progress| progress.output_ids.len());
    for _ in 0..3 {
        // Each of these is answered on a turn of its own.
        assert!(postbox.inspect(false).await.unwrap().stillness.is_still());
    }
    assert_eq!(listener.read(|progress| progress.output_ids.len()), made);
    postbox.proceed(false).await.unwrap();
    while listener.read(|progress| progress.output_ids.len()) == made {
        listener.changed().await;
    }
}
