//! The table of requests: a row for each, without what its legs say.

use rollscope_trace::{BatchSlot, Join, Leg, Nanos, Outcome, Profile, Record, RequestId, StepNumber, UnixNs};

use crate::error::RunError;
use crate::parts::attrs;
use crate::parts::legs::LegRows;
use crate::parts::rows::Rows;
use crate::parts::table::Table;

pub(crate) fn table(profiles: &[Box<Profile>]) -> Table {
    Table::of(profiles, |rows| {
        rows.ids("request_id", |profile| profile.id);
        rows.texts_or_none("group_id", |profile| profile.join.group.as_deref());
        rows.texts_or_none("sample_id", |profile| profile.join.sample.as_deref());
        rows.ints("attempt", |profile| profile.join.attempt.into());
        rows.texts_or_none("traceparent", |profile| profile.join.traceparent.as_deref());
        rows.texts_or_none("session", |profile| profile.join.session.as_deref());
        rows.texts_or_none("rid", |profile| profile.join.rid.as_deref());
        rows.texts("endpoint", |profile| &profile.endpoint);
        rows.bools("stream", |profile| profile.stream);
        rows.ints_or_none("batch_index", |profile| profile.batch.map(|slot| slot.index.into()));
        rows.ints_or_none("batch_size", |profile| profile.batch.map(|slot| slot.size.into()));
        rows.ints("arrival_ns", |profile| profile.arrival.0);
        rows.ints_or_none("first_byte_after_ns", |profile| profile.first_byte.map(|at| at.0 as i64));
        rows.ints("duration_ns", |profile| profile.end.0 as i64);
        rows.ints_or_none("status", |profile| profile.status.map(Into::into));
        rows.texts("outcome", |profile| profile.outcome.name());
        rows.long_texts_or_none("error", |profile| profile.error.as_deref());
        rows.texts("decision", |profile| &profile.decision);
        rows.ints("retries", |profile| profile.retries.into());
        rows.ints("legs", |profile| profile.legs.len() as i64);
        rows.made_texts_or_none("attrs", |profile| attrs::to_json(&profile.attrs));
    })
}

/// The profiles of a step; each takes its number of legs, which stand in the same order.
pub(crate) fn read(step: StepNumber, rows: &Rows, legs: Option<&Rows>) -> Result<Vec<Record>, RunError> {
    let mut legs = legs.map(LegRows::new).transpose()?;
    let (mut id, mut group) = (rows.texts("request_id")?, rows.texts("group_id")?);
    let (mut sample, mut attempt) = (rows.texts("sample_id")?, rows.ints("attempt")?);
    let (mut traceparent, mut session) = (rows.texts("traceparent")?, rows.texts("session")?);
    let (mut rid, mut endpoint) = (rows.texts("rid")?, rows.texts("endpoint")?);
    let (mut stream, mut arrival) = (rows.bools("stream")?, rows.ints("arrival_ns")?);
    let (mut batch_index, mut batch_size) = (rows.ints("batch_index")?, rows.ints("batch_size")?);
    let (mut first_byte, mut end) = (rows.ints("first_byte_after_ns")?, rows.ints("duration_ns")?);
    let (mut status, mut outcome) = (rows.ints("status")?, rows.texts("outcome")?);
    let (mut error, mut decision) = (rows.texts("error")?, rows.texts("decision")?);
    let (mut retries, mut leg_count) = (rows.ints("retries")?, rows.ints("legs")?);
    let mut attrs = rows.texts("attrs")?;
    let mut profile = || -> Result<Profile, RunError> {
        let id = RequestId::parse(&id.next_text_or_empty()).ok_or_else(|| rows.damaged("no request id"))?;
        let batch = (batch_index.next(), batch_size.next());
        let mut leg = || -> Result<Leg, RunError> {
            let leg = legs.as_mut().map(|legs| legs.next(id)).transpose()?.flatten();
            leg.ok_or_else(|| rows.damaged("there are fewer legs than it counts"))
        };
        Ok(Profile {
            id,
            join: Join {
                step: Some(step),
                group: group.next_text(),
                sample: sample.next_text(),
                attempt: attempt.next_or_default() as u32,
                traceparent: traceparent.next_text(),
                session: session.next_text(),
                rid: rid.next_text(),
            },
            endpoint: endpoint.next_text_or_empty(),
            stream: stream.next_or_default(),
            batch: match batch {
                (Some(index), Some(size)) => Some(BatchSlot { index: index as u32, size: size as u32 }),
                _ => None,
            },
            arrival: UnixNs(arrival.next_or_default()),
            first_byte: first_byte.next().map(|at| Nanos(at as u64)),
            end: Nanos(end.next_or_default() as u64),
            status: status.next().map(|status| status as u16),
            outcome: Outcome::from_name(&outcome.next_text_or_empty())
                .ok_or_else(|| rows.damaged("unknown outcome"))?,
            error: error.next_text(),
            decision: decision.next_text_or_empty(),
            retries: retries.next_or_default() as u32,
            legs: (0..leg_count.next_or_default()).map(|_| leg()).collect::<Result<_, _>>()?,
            attrs: attrs::from_json(attrs.next_text().as_deref(), rows)?,
        })
    };
    (0..rows.len()).map(|_| Ok(Record::Profile(Box::new(profile()?)))).collect()
}
