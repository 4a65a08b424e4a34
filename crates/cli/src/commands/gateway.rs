//! `rollscope gateway`: the data plane, with or without a recorder behind it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{ArgMatches, Command};
use http_body_util::BodyExt as _;
use rollscope_config::{ConfigError, OptionSet as _, Options as _, Published, options};
use rollscope_fpm::{Address, ForwardPassMetrics, Subscriptions};
use rollscope_gateway::{
    Counter, Gateway, GatewayOptions, HeardPass, Mount, Notices, RefusedOptions, ReplyBody,
};
use rollscope_record::{
    PassTroubles, QUEUE_MESSAGES, RecordError, RecordOptions, Recorder, RecorderHandle, follow_fleet,
    record_passes,
};
use rollscope_run::{Retention, Run, WriterState};
use rollscope_trace::{ProfileSink, sentence};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::track::targets;
use super::{block_on, listen_at, ready_line, resolve};
use crate::exit::Failure;
use crate::lifetime::{LifetimeOptions, shutdown};
use crate::opened::{create_run, glance};
use crate::output;

options! {
    /// What is recorded.
    pub(crate) struct RecordingOptions, environment "ROLLSCOPE_GATEWAY" {
        observability {
            /// Record request profiles, spans and rewards to this run; it is made where there is none.
            record: Option<String> = None, value_name("DIR");
            /// Bytes of records that may wait for the disk; what is beyond is dropped and counted.
            record_queue_bytes: usize = 64 << 20, range(65_536..=1 << 40);
            /// Send the numbers of each step to a tracker when it is closed: wandb[:PROJECT[/NAME]],
            /// tensorboard[:DIR], mlflow:URL or jsonl[:FILE]. Needs --record.
            track: Vec<String> = &[], value_name("TARGET");
            /// Copy each step that was sealed to file:///PATH or s3://BUCKET[/PREFIX]. Needs --record.
            ///
            /// For S3 the keys, the region and another endpoint are taken from the environment, as AWS's tools do:
            /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL; without keys there
            /// it is the role of the pod (EKS), the task (ECS) or the machine (EC2).
            archive: Option<String> = None, value_name("PLACE");
            /// Keep the requests, spans and samples of so many closed steps, the last ones; all of them without it.
            ///
            /// The numbers of every step stay.
            keep_steps: Option<u64> = None, range(1..=1 << 53);
            /// Keep so many bytes of log of what has been sealed; all of it without it.
            keep_log_bytes: Option<u64> = None;
            /// Record the forward passes published at these addresses too, as `ipc://PATH` or `tcp://HOST:PORT`.
            ///
            /// Those of the workers need not be given: each is asked where it publishes. --policy power_of_two and others
            /// that go by loads go by these passes while they are fresh.
            fpm: Vec<String> = &[], value_name("BASE");
        }
    }
}

/// What the command takes.
pub(crate) type Options = (RefusedOptions, GatewayOptions, RecordingOptions, LifetimeOptions);

pub(crate) fn command() -> Command {
    let command = RefusedOptions::args(GatewayOptions::command("gateway"));
    LifetimeOptions::args(RecordingOptions::args(command))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (RefusedOptions, options, recording, lifetime) = resolve::<Options>(matches)?;
    if recording.record.is_none() && !recording.track.is_empty() {
        return Err(Failure::Usage(anyhow!("--track needs --record: what is sent is taken from a run")));
    }
    if recording.record.is_none() && recording.archive.is_some() {
        return Err(Failure::Usage(anyhow!("--archive needs --record: what is copied is a run")));
    }
    if recording.record.is_none() && options.record_text {
        return Err(Failure::Usage(anyhow!("--record-text needs --record: texts are kept in a run")));
    }
    let further = further_passes(&recording)?;
    block_on(async {
        let shutdown = shutdown(&lifetime)?;
        let (listener, address) = listen_at(&options.host, options.port).await?;
        let threads = options.threads();
        let scheme = if options.tls_cert_path.is_some() { "https" } else { "http" };
        let metrics_listener = match options.prometheus_port {
            Some(port) => Some(listen_at(&options.prometheus_host, port).await?),
            None => None,
        };
        let published = Published::publish(options);
        let recorder = match &recording.record {
            Some(dir) => Some(record(Path::new(dir), &recording, &published)?),
            None => None,
        };
        let troubles = PassTroubles::new(|text| output::note(format_args!("rollscope: {text}")));
        let gateway = gateway(published, recorder.as_ref(), &troubles)?;
        if let Some((listener, address)) = metrics_listener {
            output::note(format_args!("figures at http://{address}/metrics"));
            tokio::spawn(gateway.clone().serve_metrics(listener));
        }
        let passes = recorder.as_ref().map(|recorder| {
            let hear = gateway.hear_passes();
            let (subscriptions, heard) = Subscriptions::new(QUEUE_MESSAGES);
            let recording =
                record_passes(recorder.handle(), heard, troubles.clone(), move |source, metrics| {
                    let worker =
                        source.worker.as_ref().map_or(&*metrics.worker_id, |worker| &*worker.instance);
                    if !metrics.is_heartbeat() {
                        hear(worker, heard_pass(metrics));
                    }
                });
            let ask = gateway.server_info();
            let following = follow_fleet(subscriptions, gateway.workers(), further, ask, troubles);
            [tokio::spawn(recording), tokio::spawn(following)]
        });
        ready_line("gateway", scheme, address)?;
        let served = gateway.serve_on_threads(threads, listener, shutdown).await;
        served.context("cannot start the serving threads")?;
        // What is heard from here on would only be refused, as if there were no room for it.
        for task in passes.into_iter().flatten() {
            task.abort();
            drop(task.await);
        }
        if let Some(recorder) = recorder {
            recorder.shutdown().await.map_err(anyhow::Error::from)?;
        }
        Ok(())
    })
}

/// What a forward pass tells of a load.
fn heard_pass(metrics: &ForwardPassMetrics) -> HeardPass {
    let ForwardPassMetrics { dp_rank, wall_time, scheduled, queued, .. } = metrics;
    let held =
        [scheduled.sum_prefill_tokens, scheduled.sum_prefill_kv_tokens, scheduled.sum_decode_kv_tokens];
    HeardPass {
        rank: *dp_rank,
        prefilling: scheduled.num_prefill_requests,
        decoding: scheduled.num_decode_requests,
        waiting: queued.num_prefill_requests.saturating_add(queued.num_decode_requests),
        tokens: held.into_iter().fold(0, u64::saturating_add),
        age: Duration::try_from_secs_f64(*wall_time).unwrap_or_default(),
    }
}

/// The addresses of forward passes that were given beside the workers' own.
fn further_passes(recording: &RecordingOptions) -> Result<Vec<Address>, Failure> {
    if recording.record.is_none() && !recording.fpm.is_empty() {
        return Err(Failure::Usage(anyhow::anyhow!("--fpm is of use with --record only")));
    }
    recording.fpm.iter().map(|base| base.parse().map_err(Failure::usage)).collect()
}

/// A gateway with the recorder behind it.
fn gateway(
    options: Published<GatewayOptions>,
    recorder: Option<&Recorder>,
    troubles: &PassTroubles,
) -> Result<Gateway, ConfigError> {
    let notices = Notices::new(options.startup().log_level, |_, what| {
        output::note(format_args!("rollscope: {what}"));
    });
    let Some(handle) = recorder.map(Recorder::handle) else {
        return Gateway::telling(options, None, None, notices);
    };
    let sink: Arc<dyn ProfileSink> = Arc::new(handle.clone());
    let gateway = Gateway::telling(options, Some(sink), Some(mount(handle.clone())), notices)?;
    handle.ask_live(gateway.live_steps());
    handle.go_by(gateway.wall_time());
    let (counted, troubles) = (handle.clone(), troubles.clone());
    gateway.show_counters(move || [recorder_counters(&counted), pass_counters(&troubles)].concat());
    Ok(gateway)
}

/// What the recorder has lost, as the gateway shows it.
fn recorder_counters(recorder: &RecorderHandle) -> Vec<Counter> {
    vec![
        Counter {
            name: "rollscope_recorder_profiles_lost_total",
            help: "Request profiles that were taken for the run, or offered, and are not in it.",
            value: recorder.dropped_profiles(),
        },
        Counter {
            name: "rollscope_recorder_user_records_refused_total",
            help: "Spans and marks of the user's that the run did not take.",
            value: recorder.dropped_user_records(),
        },
        Counter {
            name: "rollscope_forward_passes_refused_total",
            help: "Forward passes that were heard and are not in the run, as it could not be written in time or at all.",
            value: recorder.dropped_passes(),
        },
    ]
}

/// What has become of the messages that tell of forward passes.
fn pass_counters(troubles: &PassTroubles) -> Vec<Counter> {
    let counts = troubles.counts();
    [
        (
            "rollscope_forward_pass_messages_total",
            "Messages of forward passes that were heard, heartbeats among them.",
            counts.heard,
        ),
        (
            "rollscope_forward_pass_messages_missing_total",
            "Messages of forward passes that were sent and did not come.",
            counts.missing,
        ),
        (
            "rollscope_forward_pass_messages_malformed_total",
            "Messages of forward passes that were no record.",
            counts.malformed,
        ),
        (
            "rollscope_forward_pass_restarts_total",
            "Times that a publisher of forward passes was started anew: its numbers began anew, or it publishes elsewhere.",
            counts.restarts,
        ),
        (
            "rollscope_forward_pass_publishers_lost_total",
            "Reasons for which a publisher of forward passes was not there, each until it was there again.",
            counts.connections_lost,
        ),
        (
            "rollscope_forward_pass_bad_answers_total",
            "Answers of workers by which no forward passes can be found, or only another worker's.",
            counts.bad_answers,
        ),
    ]
    .map(|(name, help, value)| Counter { name, help, value })
    .to_vec()
}

/// Says that a run is gone on with: samples of one name in one step become one sample.
fn tell_of_others(run: &Run) -> Result<(), Failure> {
    let steps = run.steps().map_err(anyhow::Error::from)?.len();
    let writers = run.writers().map_err(anyhow::Error::from)?;
    let live = writers.iter().filter(|writer| writer.state == WriterState::Live).count();
    let beside = if live > 0 { format!(", beside {live} that write to it now") } else { String::new() };
    output::note(format_args!(
        "recording goes on in a run of {steps} steps{beside}: {}",
        run.dir().display()
    ));
    Ok(())
}

/// Starts recording into a run, new or not.
fn record(
    dir: &Path,
    options: &RecordingOptions,
    published: &Published<GatewayOptions>,
) -> Result<Recorder, Failure> {
    let trackers = targets(&options.track)?;
    let config = json!({"gateway": Value::Object(published.startup_json()), "recording": options.to_json()});
    let known = dir.join("run.json").exists();
    let run = create_run(dir, config)?;
    if known {
        tell_of_others(&run)?;
    }
    let archive = options.archive.as_deref().map(str::parse).transpose().map_err(Failure::usage)?;
    let options = RecordOptions {
        archive,
        retention: Retention { steps: options.keep_steps, log_bytes: options.keep_log_bytes },
        queue_bytes: options.record_queue_bytes,
        trackers,
        glance: Some(glance()),
        on_trouble: Arc::new(|error: &RecordError| {
            output::note(format_args!("rollscope: recording: {}", sentence(error)));
        }),
        ..RecordOptions::default()
    };
    Ok(Recorder::start(run, &options).map_err(anyhow::Error::from)?)
}

/// The recorder's routes, as the gateway takes them.
fn mount(recorder: RecorderHandle) -> Mount {
    let routes = rollscope_record::routes(recorder);
    Arc::new(move |request| {
        let routes = routes.clone();
        Box::pin(async move {
            match routes.oneshot(request.map(axum::body::Body::new)).await {
                Ok(response) => response.map(|body| ReplyBody::new(body.map_err(Into::into))),
                Err(never) => match never {},
            }
        })
    })
}

#[cfg(test)]
mod tests;
