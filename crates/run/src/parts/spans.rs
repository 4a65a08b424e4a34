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
    let mut table = Table::for_rows(spans.len());
    for span in spans {
        let mut row = table.row();
        row.text("source", USER);
        row.text_or_none("request_id", None);
        row.text_or_none("group_id", span.key.group.as_deref());
        row.text("sample_id", &span.key.sample);
        row.int("attempt", span.attempt.into());
        row.int_or_none("span_id", None);
        row.int_or_none("parent_id", None);
        row.text("name", &span.name);
        row.text("lane", Lane::User.name());
        row.int("start_ns", span.start.0);
        row.int_or_none("end_ns", span.end.map(|end| end.0));
        row.int("bound_ns", 0);
        row.text_or_none("attrs", attrs::to_json(&span.attrs).as_deref());
    }
    table
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
