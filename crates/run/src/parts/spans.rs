//! The table of spans: the user's own. Those of requests follow from the requests, whenever they are to be drawn.

use rollscope_trace::{Lane, Record, SampleKey, StepNumber, UnixNs, UserSpan};

use crate::error::RunError;
use crate::parts::attrs;
use crate::parts::rows::Rows;
use crate::parts::table::Table;

/// `source` of the user's own spans; the only ones that are read back. Parts of earlier versions also hold such as were
/// derived from requests, with a request, numbers and the bound of their place; whoever queries those columns finds them empty.
const USER: &str = "user";

pub(crate) fn table(spans: &[UserSpan]) -> Table {
    Table::of(spans, |rows| {
        rows.texts("source", |_| USER);
        rows.texts_or_none("request_id", |_| None);
        rows.texts_or_none("group_id", |span| span.key.group.as_deref());
        rows.texts("sample_id", |span| &span.key.sample);
        rows.ints("attempt", |span| span.attempt.into());
        rows.ints_or_none("span_id", |_| None);
        rows.ints_or_none("parent_id", |_| None);
        rows.texts("name", |span| &span.name);
        rows.texts("lane", |_| Lane::User.name());
        rows.ints("start_ns", |span| span.start.0);
        rows.ints_or_none("end_ns", |span| span.end.map(|end| end.0));
        rows.ints("bound_ns", |_| 0);
        rows.made_texts_or_none("attrs", |span| attrs::to_json(&span.attrs));
    })
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
