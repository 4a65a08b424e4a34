//! The engine's options: flag, environment, help and `/server_info` come from this one declaration.

use rollscope_config::{Choice, ConfigError, options};
use rollscope_fpm::{Base, MAX_WORKER_ID_BYTES};

/// Which part of a disaggregated pair a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisaggregationMode {
    /// None: it computes prompts and goes on from them.
    Null,
    /// Computes prompts and sends their keys and values to a decode server.
    Prefill,
    /// Receives them and goes on.
    Decode,
}

options! {
    /// The embedded inference server: a Llama, Qwen2 or Qwen3 checkpoint on a CPU thread or several, behind SGLang's HTTP
    /// interface, alone or as one half of a prefill/decode pair.
    pub struct EngineOptions, environment "ROLLSCOPE_ENGINE", check consistent {
        model {
            /// The model: `bundled`, a directory in Hugging Face's layout, a GGUF file, or `sim:` and the file of
            /// a cost model, which is no model: steps take the time that it says, and tokens are drawn from the seed.
            model_path: String, value_name("DIR|FILE|bundled|sim:PROFILE");
            /// Name of the model in /v1/models; the model path if not given.
            served_model_name: Option<String> = None;
            /// Longest sequence, prompt and reply together, tokens; the model's own limit if not given.
            context_length: Option<usize> = None, range(2..=1 << 24);
            /// Version of the weights, reported with every reply.
            weight_version: String = "default";
        }
        exec {
            /// Data-parallel ranks: schedulers with a compute thread and a KV cache each, behind one address.
            dp_size: usize = 1, range(1..=64);
            /// Seed from which requests without a `sampling_seed` get theirs; drawn at start if not given.
            random_seed: Option<u64> = None;
        }
        serving {
            /// Address to listen on.
            host: String = "127.0.0.1";
            /// Port to listen on; 0 picks a free one.
            port: u16 = 0;
            /// Seconds that requests which are running may take to end once the server was told to stop.
            shutdown_timeout: f64 = 30.0, range(0.0..=86_400.0), value_name("SECONDS");
        }
        schedule {
            /// Requests that a rank computes in one batch.
            ///
            /// A prefill server has as many metadata slots, a decode server twice as many: one batch is received while
            /// the one before is running.
            max_running_requests: usize = 64, range(1..=4096);
            /// Requests waiting for a rank beyond which further ones are refused with 503.
            max_queued_requests: usize = 8192, range(1..=1 << 20);
            /// Seconds that a request may wait to be computed, beyond which it ends with 503; 0 or less: as long as it takes.
            request_waiting_timeout: f64 = -1.0, range(-1.0..=86_400.0), value_name("SECONDS"),
                env("SGLANG_REQ_WAITING_TIMEOUT");
            /// Prompt tokens computed in one step; longer prompts are cut into chunks.
            chunked_prefill_size: usize = 512, range(1..=1 << 20);
        }
        memory {
            /// Tokens that the KV cache of a rank holds; rounded down to whole pages.
            max_total_tokens: usize = 65_536, range(1..=1 << 28);
            /// Tokens that a request may generate before it needs further pages.
            ///
            /// They are set aside when it begins. Fewer let more requests run at once; more make it rarer that one has to give
            /// its pages back and is computed again.
            num_reserved_decode_tokens: usize = 512, range(0..=1 << 24);
            /// Compute every prompt from its beginning, though another one began as it does.
            disable_radix_cache: bool = false;
            /// Tokens on a page of the KV cache.
            page_size: usize = 16, range(1..=1024);
        }
        observability {
            /// Publish forward-pass metrics: one message for each step of the scheduler.
            enable_forward_pass_metrics: bool = false;
            /// Where, as `ipc://PATH` or `tcp://HOST:PORT`; a fresh path, told by /server_info, if not given.
            ///
            /// Data-parallel rank r is found at PATH.r, or at the port plus r.
            forward_pass_metrics_ipc_name: Option<String> = None, value_name("BASE");
            /// What the messages call this server.
            forward_pass_metrics_worker_id: String = "";
        }
        disagg {
            /// Which part of a disaggregated pair this server is.
            disaggregation_mode: DisaggregationMode = DisaggregationMode::Null;
            /// Prefill: port of the bootstrap server, 0 picks a free one. Decode: port of prefill servers whose requests name
            /// none.
            disaggregation_bootstrap_port: u16 = 8998;
            /// Seconds that a request may wait for the other server to appear.
            disaggregation_bootstrap_timeout: f64 = 300.0, range(0.0..=86_400.0), value_name("SECONDS"),
                env("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT");
            /// Seconds that a decode server waits for the first of a request's KV cache.
            disaggregation_waiting_timeout: f64 = 300.0, range(0.0..=86_400.0), value_name("SECONDS"),
                env("SGLANG_DISAGGREGATION_WAITING_TIMEOUT");
            /// Seconds that a request may wait for the other server, and again that its transfer may take.
            disaggregation_transfer_timeout: f64 = 600.0, range(0.0..=86_400.0), value_name("SECONDS"),
                env("SGLANG_DISAGGREGATION_TRANSFER_TIMEOUT");
            /// Let decode's replies tell of the prefill side's stages before the transfer, for clients that come without a gateway.
            ///
            /// Both servers must be told to: the metadata row has one more column.
            disaggregation_prefill_timing: bool = false;
        }
    }
}

impl Choice for DisaggregationMode {
    const SPELLINGS: &'static [(&'static str, Self)] =
        &[("null", Self::Null), ("prefill", Self::Prefill), ("decode", Self::Decode)];
}

fn consistent(options: &EngineOptions) -> Result<(), ConfigError> {
    if options.max_total_tokens < options.page_size {
        return Err(ConfigError::Conflict(format!(
            "max_total_tokens ({}) is less than one page ({})",
            options.max_total_tokens, options.page_size
        )));
    }
    let worker_id = options.forward_pass_metrics_worker_id.len();
    if worker_id > MAX_WORKER_ID_BYTES {
        return Err(ConfigError::Conflict(format!(
            "forward_pass_metrics_worker_id has {worker_id} bytes, and {MAX_WORKER_ID_BYTES} at most are allowed"
        )));
    }
    if let Some(base) = &options.forward_pass_metrics_ipc_name {
        base.parse::<Base>()
            .map_err(|error| ConfigError::Conflict(format!("forward_pass_metrics_ipc_name: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rollscope_config::{OptionSet as _, Options as _, Sources};

    use super::*;

    #[test]
    fn timeouts_have_the_names_of_the_field() {
        let matches =
            EngineOptions::command("engine").get_matches_from(["engine", "--model-path", "bundled"]);
        let env = |name: &str| match name {
            "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT" => Some("5".to_owned()),
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT" => Some("0.5".to_owned()),
            "SGLANG_DISAGGREGATION_TRANSFER_TIMEOUT" => Some("7".to_owned()),
            "SGLANG_REQ_WAITING_TIMEOUT" => Some("9".to_owned()),
            _ => None,
        };
        let options = EngineOptions::resolve(&matches, &Sources { env: &env, file: None }).unwrap();
        let timeouts = (
            options.disaggregation_bootstrap_timeout,
            options.disaggregation_waiting_timeout,
            options.disaggregation_transfer_timeout,
            options.request_waiting_timeout,
        );
        assert_eq!(timeouts, (5.0, 0.5, 7.0, 9.0));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let args = ["--model-path", "bundled", "--max-total-tokens", "31", "--page-size", "32"];
        let error = EngineOptions::from_args(args).unwrap_err();
        assert!(error.to_string().contains("max_total_tokens (31) is less than one page (32)"), "{error}");
        let named = |chars: usize| {
            let name = "é".repeat(chars);
            EngineOptions::from_args(["--model-path", "bundled", "--forward-pass-metrics-worker-id", &name])
        };
        assert!(named(128).is_ok());
        let error = named(129).unwrap_err();
        assert!(error.to_string().contains("258 bytes, and 256 at most"), "{error}");
    }
}
