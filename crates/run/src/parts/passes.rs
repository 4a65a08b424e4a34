//! The table of forward passes: a row for each that was heard of while the step went on.

use rollscope_trace::{ForwardPass, Nanos, PassLoad, StepNumber, UnixNs, WorkerRef};

use crate::error::RunError;
use crate::parts::rows::Rows;
use crate::parts::table::{Filling, Table};
use crate::texts::SharedTexts;

/// The names of a load's columns.
struct Names {
    prefill_requests: &'static str,
    prefill_tokens: &'static str,
    prefill_length_variance: &'static str,
    prefill_kv_tokens: &'static str,
    decode_requests: &'static str,
    decode_kv_tokens: &'static str,
    decode_kv_variance: &'static str,
}

const SCHEDULED: Names = Names {
    prefill_requests: "scheduled_prefill_requests",
    prefill_tokens: "scheduled_prefill_tokens",
    prefill_length_variance: "scheduled_prefill_length_variance",
    prefill_kv_tokens: "scheduled_prefill_kv_tokens",
    decode_requests: "scheduled_decode_requests",
    decode_kv_tokens: "scheduled_decode_kv_tokens",
    decode_kv_variance: "scheduled_decode_kv_variance",
};
const QUEUED: Names = Names {
    prefill_requests: "queued_prefill_requests",
    prefill_tokens: "queued_prefill_tokens",
    prefill_length_variance: "queued_prefill_length_variance",
    prefill_kv_tokens: "queued_prefill_kv_tokens",
    decode_requests: "queued_decode_requests",
    decode_kv_tokens: "queued_decode_kv_tokens",
    decode_kv_variance: "queued_decode_kv_variance",
};

pub(crate) fn table(passes: &[ForwardPass]) -> Table {
    Table::of(passes, |rows| {
        rows.texts("endpoint", |pass| &pass.endpoint);
        rows.texts_or_none("worker_url", |pass| pass.worker.as_ref().map(|worker| &*worker.url));
        rows.texts_or_none("worker_instance", |pass| pass.worker.as_ref().map(|worker| &*worker.instance));
        rows.texts("worker_id", |pass| &pass.worker_id);
        rows.ints("dp_rank", |pass| pass.dp_rank.into());
        rows.ints("life", |pass| pass.life.into());
        rows.ints("counter_id", |pass| pass.counter_id as i64);
        rows.ints("lost_before", |pass| pass.lost_before as i64);
        rows.ints("received_ns", |pass| pass.received.0);
        rows.ints("uncertainty_ns", |pass| pass.uncertainty.0 as i64);
        rows.ints("wall_ns", |pass| pass.wall.0 as i64);
        fill(rows, &SCHEDULED, |pass| &pass.scheduled);
        fill(rows, &QUEUED, |pass| &pass.queued);
    })
}

fn fill(rows: &mut Filling<'_, ForwardPass>, names: &Names, load: fn(&ForwardPass) -> &PassLoad) {
    rows.ints(names.prefill_requests, |pass| load(pass).prefill_requests as i64);
    rows.ints(names.prefill_tokens, |pass| load(pass).prefill_tokens as i64);
    rows.doubles_or_none(names.prefill_length_variance, |pass| Some(load(pass).prefill_length_variance));
    rows.ints(names.prefill_kv_tokens, |pass| load(pass).prefill_kv_tokens as i64);
    rows.ints(names.decode_requests, |pass| load(pass).decode_requests as i64);
    rows.ints(names.decode_kv_tokens, |pass| load(pass).decode_kv_tokens as i64);
    rows.doubles_or_none(names.decode_kv_variance, |pass| Some(load(pass).decode_kv_variance));
}

/// The passes of a part.
pub(crate) fn read(step: StepNumber, rows: &Rows) -> Result<Vec<ForwardPass>, RunError> {
    let (mut endpoint, mut worker_id) = (rows.texts("endpoint")?, rows.texts("worker_id")?);
    let (mut url, mut instance) = (rows.texts("worker_url")?, rows.texts("worker_instance")?);
    let (mut dp_rank, mut life) = (rows.ints("dp_rank")?, rows.ints("life")?);
    let (mut counter_id, mut lost_before) = (rows.ints("counter_id")?, rows.ints("lost_before")?);
    let (mut received, mut uncertainty) = (rows.ints("received_ns")?, rows.ints("uncertainty_ns")?);
    let mut wall = rows.ints("wall_ns")?;
    let mut workers = SharedTexts::default();
    let scheduled = loads(rows, &SCHEDULED)?;
    let queued = loads(rows, &QUEUED)?;
    let passes = scheduled.into_iter().zip(queued).map(|(scheduled, queued)| {
        let mut shared = |text: Option<Box<str>>| text.map(|text| workers.of(&text));
        let (url, instance) = (shared(url.next_text()), shared(instance.next_text()));
        ForwardPass {
            step: Some(step),
            endpoint: endpoint.next_text_or_empty(),
            worker: url.zip(instance).map(|(url, instance)| WorkerRef { url, instance }),
            worker_id: worker_id.next_text_or_empty(),
            dp_rank: dp_rank.next_or_default() as u32,
            life: life.next_or_default() as u32,
            counter_id: counter_id.next_or_default() as u64,
            lost_before: lost_before.next_or_default() as u64,
            received: UnixNs(received.next_or_default()),
            uncertainty: Nanos(uncertainty.next_or_default() as u64),
            wall: Nanos(wall.next_or_default() as u64),
            scheduled,
            queued,
        }
    });
    Ok(passes.collect())
}

fn loads(rows: &Rows, names: &Names) -> Result<Vec<PassLoad>, RunError> {
    let (mut prefill, mut decode) = (rows.ints(names.prefill_requests)?, rows.ints(names.decode_requests)?);
    let mut tokens = rows.ints(names.prefill_tokens)?;
    let (mut cached, mut kv) = (rows.ints(names.prefill_kv_tokens)?, rows.ints(names.decode_kv_tokens)?);
    let mut lengths = rows.doubles(names.prefill_length_variance)?;
    let mut sequences = rows.doubles(names.decode_kv_variance)?;
    let load = |_| PassLoad {
        prefill_requests: prefill.next_or_default() as u64,
        prefill_tokens: tokens.next_or_default() as u64,
        prefill_length_variance: lengths.next_or_default(),
        prefill_kv_tokens: cached.next_or_default() as u64,
        decode_requests: decode.next_or_default() as u64,
        decode_kv_tokens: kv.next_or_default() as u64,
        decode_kv_variance: sequences.next_or_default(),
    };
    Ok((0..rows.len()).map(load).collect())
}
