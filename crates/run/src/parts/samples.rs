//! The table of samples: what the user said of each, and for queries when it began and ended and what it has.
//!
//! A sample whose records were sealed at several times has a row in each part: over all of them, begin is the
//! smallest, end the largest, and the counts add up; of what the user said, the later part holds.

use rollscope_trace::{
    Nanos, PrefixCounts, Record, SampleKey, SampleMark, SampleName, SpecCounts, StepNumber, StepRecords,
    UnixNs,
};

use crate::error::RunError;
use crate::log::mirror::{left_out_of, left_out_text};
use crate::parts::rows::Rows;
use crate::parts::table::Table;

/// Group and sample.
pub(crate) type Key = (Option<Box<str>>, Box<str>);

/// What is known of a sample in this part.
pub(super) struct Tally<'a> {
    group: Option<&'a str>,
    name: SampleName<'a>,
    first_mark: Option<&'a SampleMark>,
    /// With those that followed it.
    amended: Option<Box<SampleMark>>,
    start: Option<UnixNs>,
    end: Option<UnixNs>,
    requests: i64,
    user_spans: i64,
}

pub(super) fn table(samples: &[Tally<'_>]) -> Table {
    Table::of(samples, |rows| {
        rows.texts_or_none("group_id", |of| of.group);
        rows.names("sample_id", |of| of.name);
        rows.bools("marked", |of| of.first_mark.is_some());
        rows.doubles_or_none("reward", |of| of.mark()?.reward);
        rows.bools_or_none("truncated", |of| of.mark()?.truncated);
        rows.ints_or_none("response_tokens", |of| of.mark()?.response_tokens.map(|n| n as i64));
        rows.ints_or_none("effective_response_tokens", |of| {
            of.mark()?.effective_response_tokens.map(|n| n as i64)
        });
        rows.ints_or_none("non_generation_ns", |of| of.mark()?.non_generation_time.map(|time| time.0 as i64));
        rows.bools_or_none("repetition", |of| of.mark()?.repetition);
        rows.texts_or_none("category", |of| of.mark()?.category.as_deref());
        rows.ints_or_none("top_p_kept", |of| of.mark()?.top_p_kept.map(|n| n as i64));
        let spec = |of: &Tally<'_>| of.mark()?.spec.as_deref().copied();
        rows.ints_or_none("spec_accept_token_num", |of| spec(of).map(|spec| spec.accepted as i64));
        rows.ints_or_none("spec_draft_token_num", |of| spec(of).map(|spec| spec.drafted as i64));
        rows.ints_or_none("spec_verify_ct", |of| spec(of).map(|spec| spec.verified as i64));
        rows.ints_or_none("spec_completion_token_num", |of| spec(of).map(|spec| spec.generated as i64));
        let prefix = |of: &Tally<'_>| of.mark()?.prefix.as_deref().copied();
        rows.ints_or_none("prompt_tokens", |of| prefix(of).map(|prefix| prefix.prompt as i64));
        rows.ints_or_none("cached_tokens", |of| prefix(of).map(|prefix| prefix.cached as i64));
        rows.made_texts_or_none("left_out", |of| {
            let left_out = &of.mark()?.left_out;
            (!left_out.is_empty()).then(|| left_out_text(left_out))
        });
        rows.long_texts_or_none("carrier", |of| of.mark()?.carrier.as_deref());
        rows.texts_or_none("dataset", |of| of.mark()?.dataset.as_deref());
        rows.bools("evaluation", |of| of.mark().is_some_and(|mark| mark.evaluation));
        rows.ints_or_none("start_ns", |of| of.start.map(|at| at.0));
        rows.ints_or_none("end_ns", |of| of.end.map(|at| at.0));
        rows.ints("requests", |of| of.requests);
        rows.ints("user_spans", |of| of.user_spans);
    })
}

/// The samples, in the order in which they appear.
pub(super) fn tallies(records: &StepRecords) -> Vec<Tally<'_>> {
    let (places, count) = records.places();
    let mut tallies: Vec<Tally<'_>> = Vec::with_capacity(count);
    let mut places = places.into_iter();
    for (profile, place) in records.profiles.iter().zip(&mut places) {
        let tally = Tally::at(&mut tallies, place, || (profile.join.group.as_deref(), profile.sample_name()));
        tally.requests += 1;
        tally.cover(profile.arrival, Some(profile.ended_at()));
    }
    for (span, place) in records.spans.iter().zip(&mut places) {
        let tally = Tally::at(&mut tallies, place, || names(&span.key));
        tally.user_spans += 1;
        tally.cover(span.start, span.end);
    }
    for (mark, place) in records.marks.iter().zip(places) {
        let tally = Tally::at(&mut tallies, place, || names(&mark.key));
        match (tally.first_mark, &mut tally.amended) {
            (None, _) => tally.first_mark = Some(mark),
            (Some(_), Some(all)) => all.amend(mark),
            (Some(first), none) => none.insert(Box::new(first.clone())).amend(mark),
        }
    }
    tallies
}

fn names(key: &SampleKey) -> (Option<&str>, SampleName<'_>) {
    (key.group.as_deref(), SampleName::of(&key.sample))
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
    let ints = |name| rows.ints(name).map(|mut cells| move || cells.next().map(|count| count as u64));
    let (mut accepted, mut drafted) = (ints("spec_accept_token_num")?, ints("spec_draft_token_num")?);
    let (mut verified, mut generated) = (ints("spec_verify_ct")?, ints("spec_completion_token_num")?);
    let (mut prompt, mut cached) = (ints("prompt_tokens")?, ints("cached_tokens")?);
    let mut spec = || {
        let all = (accepted(), drafted(), verified(), generated());
        let (Some(accepted), Some(drafted), Some(verified), Some(generated)) = all else { return None };
        Some(Box::new(SpecCounts { accepted, drafted, verified, generated }))
    };
    let mut prefix = || {
        let (Some(prompt), Some(cached)) = (prompt(), cached()) else { return None };
        Some(Box::new(PrefixCounts { prompt, cached }))
    };
    let (mut left_out, mut carrier) = (rows.texts("left_out")?, rows.texts("carrier")?);
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
            spec: spec(),
            prefix: prefix(),
            left_out: left_out_of(&left_out.next_text_or_empty()),
            carrier: carrier.next_text(),
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

// === impl Tally ===

impl<'a> Tally<'a> {
    /// That of a number; the next one is made.
    fn at<'t>(
        tallies: &'t mut Vec<Self>,
        number: usize,
        names: impl FnOnce() -> (Option<&'a str>, SampleName<'a>),
    ) -> &'t mut Self {
        if number == tallies.len() {
            let (group, name) = names();
            tallies.push(Self {
                group,
                name,
                first_mark: None,
                amended: None,
                start: None,
                end: None,
                requests: 0,
                user_spans: 0,
            });
        }
        &mut tallies[number]
    }

    fn mark(&self) -> Option<&SampleMark> {
        self.amended.as_deref().or(self.first_mark)
    }

    fn cover(&mut self, start: UnixNs, end: Option<UnixNs>) {
        self.start = Some(self.start.map_or(start, |before| before.min(start)));
        self.end = self.end.max(end);
    }
}
