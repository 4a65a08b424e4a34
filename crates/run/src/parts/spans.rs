//! The table of spans: the user's own, and for queries those that are derived from each request.

use rollscope_trace::{Lane, Record, SampleKey, StepNumber, UnixNs, UserSpan, profile_spans};

use crate::error::RunError;
use crate::parts::StepRows;
use crate::parts::attrs;
use crate::parts::rows::Rows;
use crate::parts::table::Table;

/// `source` of the user's own spans; the only ones that are read back.
const USER: &str = "user";
/// `source` of spans that follow from a request.
const DERIVED: &str = "derived";

/// A row.
struct SpanRow<'a> {
    source: &'static str,
    /// The request that it is derived from.
    request: Option<&'a str>,
    key: &'a SampleKey,
    attempt: u32,
    /// Its number and its parent's, within the request.
    ids: (Option<u32>, Option<u32>),
    name: &'a str,
    lane: Lane,
    start: UnixNs,
    end: Option<UnixNs>,
    bound_ns: u64,
    attrs: Option<String>,
}

pub(crate) fn table(step: StepNumber, rows: &StepRows) -> Table {
    let mut table = Table::default();
    for span in &rows.spans {
        put(
            &mut table,
            &SpanRow {
                source: USER,
                request: None,
                key: &span.key,
                attempt: span.attempt,
                ids: (None, None),
                name: &span.name,
                lane: Lane::User,
                start: span.start,
                end: span.end,
                bound_ns: 0,
                attrs: attrs::to_json(&span.attrs),
            },
        );
    }
    for profile in &rows.profiles {
        let (key, id) = (profile.sample_key(step), profile.id.to_string());
        for span in profile_spans(profile) {
            put(
                &mut table,
                &SpanRow {
                    source: DERIVED,
                    request: Some(&id),
                    key: &key,
                    attempt: profile.join.attempt,
                    ids: (Some(span.id), span.parent),
                    name: &span.name,
                    lane: span.lane,
                    start: span.start,
                    end: span.end,
                    bound_ns: span.bound.0,
                    // They would say again what stands in the tables of requests and legs.
                    attrs: None,
                },
            );
        }
    }
    table
}

fn put(table: &mut Table, span: &SpanRow<'_>) {
    let mut row = table.row();
    row.text("source", span.source);
    row.text_or_none("request_id", span.request);
    row.text_or_none("group_id", span.key.group.as_deref());
    row.text("sample_id", &span.key.sample);
    row.int("attempt", span.attempt.into());
    row.int_or_none("span_id", span.ids.0.map(Into::into));
    row.int_or_none("parent_id", span.ids.1.map(Into::into));
    row.text("name", span.name);
    row.text("lane", span.lane.name());
    row.int("start_ns", span.start.0);
    row.int_or_none("end_ns", span.end.map(|end| end.0));
    row.int("bound_ns", span.bound_ns as i64);
    row.text_or_none("attrs", span.attrs.as_deref());
}

/// The user's spans of a part.
pub(crate) fn read(step: StepNumber, rows: &Rows) -> Result<Vec<Record>, RunError> {
    let (mut source, mut group) = (rows.texts("source")?, rows.texts("group_id")?);
    let (mut sample, mut attempt) = (rows.texts("sample_id")?, rows.ints("attempt")?);
    let (mut name, mut attrs) = (rows.texts("name")?, rows.texts("attrs")?);
    let (mut start, mut end) = (rows.ints("start_ns")?, rows.ints("end_ns")?);
    let mut records = Vec::new();
    for _ in 0..rows.len() {
        let (source, attrs) = (source.next_text_or_empty(), attrs.next_text());
        let key = SampleKey { step, group: group.next_text(), sample: sample.next_text_or_empty() };
        let (attempt, name) = (attempt.next_or_default() as u32, name.next_text_or_empty());
        let (start, end) = (UnixNs(start.next_or_default()), end.next().map(UnixNs));
        if *source == *USER {
            let attrs = attrs::from_json(attrs.as_deref(), rows)?;
            records.push(Record::Span(UserSpan { key, attempt, name, start, end, attrs }));
        }
    }
    Ok(records)
}
