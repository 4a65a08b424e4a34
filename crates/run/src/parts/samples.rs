//! The table of samples: what the user said of each, and for queries when it began and ended and what it has.
//!
//! A sample whose records were sealed at several times has a row in each part: over all of them, begin is the
//! smallest, end the largest, and the counts add up; of what the user said, the later part holds.

use std::collections::HashMap;

use rollscope_trace::{Nanos, Record, SampleKey, SampleMark, StepNumber, UnixNs};

use crate::error::RunError;
use crate::parts::StepRows;
use crate::parts::rows::Rows;
use crate::parts::table::Table;

/// Group and sample.
pub(crate) type Key = (Option<Box<str>>, Box<str>);

/// What is known of a sample in this part.
#[derive(Default)]
pub(super) struct Tally {
    mark: Option<SampleMark>,
    start: Option<UnixNs>,
    end: Option<UnixNs>,
    requests: i64,
    user_spans: i64,
}

/// The samples, and where each of them stands.
#[derive(Default)]
struct Tallies {
    all: Vec<(SampleKey, Tally)>,
    places: HashMap<SampleKey, usize>,
}

pub(super) fn table(samples: &[(SampleKey, Tally)]) -> Table {
    let mut table = Table::for_rows(samples.len());
    for (key, tally) in samples {
        let mark = tally.mark.as_ref();
        let mut row = table.row();
        row.text_or_none("group_id", key.group.as_deref());
        row.text("sample_id", &key.sample);
        row.bool("marked", mark.is_some());
        row.double_or_none("reward", mark.and_then(|mark| mark.reward));
        row.bool_or_none("truncated", mark.and_then(|mark| mark.truncated));
        row.int_or_none("response_tokens", mark.and_then(|mark| mark.response_tokens).map(|n| n as i64));
        row.int_or_none(
            "effective_response_tokens",
            mark.and_then(|mark| mark.effective_response_tokens).map(|n| n as i64),
        );
        row.int_or_none(
            "non_generation_ns",
            mark.and_then(|mark| mark.non_generation_time).map(|time| time.0 as i64),
        );
        row.bool_or_none("repetition", mark.and_then(|mark| mark.repetition));
        row.text_or_none("category", mark.and_then(|mark| mark.category.as_deref()));
        row.int_or_none("top_p_kept", mark.and_then(|mark| mark.top_p_kept).map(|n| n as i64));
        row.text_or_none("dataset", mark.and_then(|mark| mark.dataset.as_deref()));
        row.bool("evaluation", mark.is_some_and(|mark| mark.evaluation));
        row.int_or_none("start_ns", tally.start.map(|at| at.0));
        row.int_or_none("end_ns", tally.end.map(|at| at.0));
        row.int("requests", tally.requests);
        row.int("user_spans", tally.user_spans);
    }
    table
}

/// The samples, in the order in which they appear.
pub(super) fn tallies(step: StepNumber, rows: &StepRows) -> Vec<(SampleKey, Tally)> {
    let mut tallies = Tallies::default();
    for profile in &rows.profiles {
        let tally = tallies.of(profile.sample_key(step));
        tally.requests += 1;
        tally.cover(profile.arrival, Some(profile.ended_at()));
    }
    for span in &rows.spans {
        let tally = tallies.of(span.key.clone());
        tally.user_spans += 1;
        tally.cover(span.start, span.end);
    }
    for mark in &rows.marks {
        let tally = tallies.of(mark.key.clone());
        tally.mark.get_or_insert_with(|| SampleMark::new(mark.key.clone())).amend(mark);
    }
    tallies.all
}

/// The marks of a part.
pub(crate) fn read(step: StepNumber, rows: &Rows) -> Result<Vec<Record>, RunError> {
    let mut marked = rows.bools("marked")?;
    let (mut reward, mut truncated) = (rows.doubles("reward")?, rows.bools("truncated")?);
    let (mut response_tokens, mut evaluation) = (rows.ints("response_tokens")?, rows.bools("evaluation")?);
    let mut effective = rows.ints("effective_response_tokens")?;
    let (mut non_generation, mut repetition) = (rows.ints("non_generation_ns")?, rows.bools("repetition")?);
    let (mut category, mut dataset) = (rows.texts("category")?, rows.texts("dataset")?);
    let mut top_p_kept = rows.ints("top_p_kept")?;
    let mut records = Vec::new();
    for (group, sample) in keys(rows)? {
        let mark = SampleMark {
            key: SampleKey { step, group, sample },
            reward: reward.next(),
            truncated: truncated.next(),
            response_tokens: response_tokens.next().map(|tokens| tokens as u64),
            effective_response_tokens: effective.next().map(|tokens| tokens as u64),
            non_generation_time: non_generation.next().map(|time| Nanos(time as u64)),
            repetition: repetition.next(),
            category: category.next_text(),
            top_p_kept: top_p_kept.next().map(|kept| kept as u64),
            dataset: dataset.next_text(),
            evaluation: evaluation.next_or_default(),
        };
        if marked.next_or_default() {
            records.push(Record::Sample(mark));
        }
    }
    Ok(records)
}

/// The names of the samples of a part.
pub(crate) fn keys(rows: &Rows) -> Result<Vec<Key>, RunError> {
    let (mut group, mut sample) = (rows.texts("group_id")?, rows.texts("sample_id")?);
    Ok((0..rows.len()).map(|_| (group.next_text(), sample.next_text_or_empty())).collect())
}

// === impl Tallies ===

impl Tallies {
    fn of(&mut self, key: SampleKey) -> &mut Tally {
        let at = *self.places.entry(key).or_insert_with_key(|key| {
            self.all.push((key.clone(), Tally::default()));
            self.all.len() - 1
        });
        &mut self.all[at].1
    }
}

// === impl Tally ===

impl Tally {
    fn cover(&mut self, start: UnixNs, end: Option<UnixNs>) {
        self.start = Some(self.start.map_or(start, |before| before.min(start)));
        self.end = self.end.max(end);
    }
}
