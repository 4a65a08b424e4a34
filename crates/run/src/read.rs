//! What a run knows: its steps, its writers, its losses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;

use rollscope_trace::{ForwardPass, Record, SampleKey, StepClose, StepNumber, StepTrace, UnixNs};

use crate::contents::LateWatch;
use crate::error::RunError;
use crate::files;
use crate::log::cursor::LogCursor;
use crate::log::{Damage, segment_number};
use crate::manifest::{Manifest, Newest, Seal};
use crate::parts::StepParts;
use crate::presence;
use crate::run::Run;
use crate::sealed::sample_key;
use crate::step_set::StepSet;

/// A step of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSummary {
    /// Which step.
    pub step: StepNumber,
    /// The last word on its end; nothing while it is open.
    pub close: Option<StepClose>,
    /// Records have come after it was closed. Where they changed its numbers, these were sent to trackers again.
    pub late: bool,
    /// Requests recorded.
    pub requests: u64,
    /// Samples that they, the user's spans and marks belong to.
    pub samples: u64,
    /// Spans of the user's own code.
    pub user_spans: u64,
    /// Forward passes that were heard of meanwhile.
    pub passes: u64,
}

/// A writer of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterSummary {
    /// The name of its folder.
    pub name: Box<str>,
    /// Whether it is still writing.
    pub state: WriterState,
    /// Segments of its log.
    pub segments: u32,
    /// Size of its log.
    pub bytes: u64,
    /// Records of later versions that this program passed over.
    pub unknown: u64,
    /// What cannot be read of its log, and its parts that this [`Run`] or a clone of it has read, found damaged,
    /// and could not make up for from the log.
    pub damage: Vec<Damage>,
}

/// Whether a writer is still writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// It holds its log open.
    Live,
    /// It closed its log in order.
    Ended,
    /// It is gone and has not closed its log: it was killed, or the run was copied meanwhile.
    Interrupted,
}

/// Records lost before they reached a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Profiles.
    pub profiles: u64,
    /// Spans and marks of the user's.
    pub user_records: u64,
}

/// Adds up what is known of a step.
#[derive(Default)]
struct StepTally {
    closes: Vec<StepClose>,
    late: bool,
    requests: u64,
    user_spans: u64,
    passes: u64,
    /// Samples of its parts; those of different parts may be the same.
    sealed_samples: Vec<u64>,
    /// Samples of records that are not in parts.
    samples: BTreeSet<(Option<Box<str>>, Box<str>)>,
}

// === impl WriterState ===

impl WriterState {
    /// As written in reports and on pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ended => "ended",
            Self::Interrupted => "interrupted",
        }
    }
}

// === impl Run ===

impl Run {
    /// The steps, by number.
    pub fn steps(&self) -> Result<Vec<StepSummary>, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let mut tallies = sealed_tallies(&manifest);
        let mut passes = sealed_passes(&manifest);
        self.for_each_unsealed(&manifest, |record, late| match (&record, record.step()) {
            (Record::ForwardPass(_), Some(step)) => *passes.entry(step).or_default() += 1,
            (_, Some(step)) => tallies.entry(step).or_default().add(&record, late),
            (_, None) => {}
        })?;
        self.summaries(&manifest, tallies, &passes)
    }

    /// The steps whose end has been sealed, be they kept or not.
    pub fn closed_steps(&self) -> Result<StepSet, RunError> {
        Ok(Newest::read(self)?.manifest.closed_steps())
    }

    /// The closed steps that are no longer kept: only their numbers are left, and nothing that still comes of them is read.
    pub fn forgotten_steps(&self) -> Result<StepSet, RunError> {
        Ok(Newest::read(self)?.manifest.forgotten().clone())
    }

    /// The steps that were closed, as far as that has been sealed, and never got their numbers: whoever closed them was killed.
    pub fn steps_without_numbers(&self) -> Result<BTreeSet<StepNumber>, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let parts = manifest.seals().flat_map(|seal| &seal.steps).filter(|parts| parts.samples > 0);
        let recorded: BTreeSet<_> = parts.map(|parts| StepNumber(parts.step)).collect();
        let closed = manifest.closed_steps();
        let closed = recorded.into_iter().filter(|step| closed.contains(step));
        Ok(closed.filter(|step| !self.stats_path(*step).exists()).collect())
    }

    /// The steps as far as they have been sealed.
    pub(crate) fn sealed_steps(&self, manifest: &Manifest) -> Result<Vec<StepSummary>, RunError> {
        self.summaries(manifest, sealed_tallies(manifest), &sealed_passes(manifest))
    }

    fn summaries(
        &self,
        manifest: &Manifest,
        tallies: BTreeMap<StepNumber, StepTally>,
        passes: &BTreeMap<StepNumber, u64>,
    ) -> Result<Vec<StepSummary>, RunError> {
        let summary = |(step, mut tally): (StepNumber, StepTally)| {
            // Passes alone make no step: its requests are yet to come.
            tally.passes = passes.get(&step).copied().unwrap_or_default();
            if tally.sealed_samples.len() > usize::from(tally.samples.is_empty()) {
                tally.sealed_samples.clear();
                for (seal, parts) in parts_of(manifest, step) {
                    match seal.sample_keys(self, parts)? {
                        Some(keys) => tally.samples.extend(keys),
                        None => tally.sealed_samples.push(parts.samples),
                    }
                }
            }
            Ok(tally.summary(step))
        };
        tallies.into_iter().map(summary).collect()
    }

    /// The samples of a step that have been sealed: read without their requests.
    pub fn sealed_samples(&self, step: StepNumber) -> Result<BTreeSet<SampleKey>, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let mut samples = BTreeSet::new();
        for (seal, parts) in parts_of(&manifest, step) {
            let keys = seal.sample_keys(self, parts)?.into_iter().flatten();
            samples.extend(keys.map(|(group, sample)| SampleKey { step, group, sample }));
        }
        Ok(samples)
    }

    /// Everything known of a step. What is lost with a damaged part is named by [`Self::writers`].
    pub fn step(&self, step: StepNumber) -> Result<StepTrace, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let (mut records, mut is_known) = (Vec::new(), false);
        for (seal, parts) in parts_of(&manifest, step) {
            records.extend(seal.read_step(self, parts)?);
            is_known = true;
        }
        records.extend(manifest.closes().filter(|close| close.step == step).map(Record::Close));
        self.for_each_unsealed(&manifest, |record, _| {
            if record.step() == Some(step) {
                records.push(record);
            }
        })?;
        if records.is_empty() && !is_known {
            return Err(RunError::NoSuchStep { step });
        }
        Ok(StepTrace::gather(step, records))
    }

    /// The forward passes that were heard of while a step went on, writer by writer in the order in which they were
    /// heard of; none where no worker told of any. One that a step begins with may stand with the step before.
    pub fn forward_passes(&self, step: StepNumber) -> Result<Vec<ForwardPass>, RunError> {
        let mut passes = self.passes_and_rests(step)?;
        passes.retain(|pass| !pass.is_rest());
        Ok(passes)
    }

    /// The same, and between them where ranks came to rest ([`ForwardPass::is_rest`]).
    pub fn passes_and_rests(&self, step: StepNumber) -> Result<Vec<ForwardPass>, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let mut passes = Vec::new();
        for (seal, parts) in parts_of(&manifest, step) {
            passes.extend(seal.passes(self, parts)?);
        }
        self.for_each_unsealed(&manifest, |record, _| match record {
            Record::ForwardPass(pass) if pass.step == Some(step) => passes.push(*pass),
            _ => {}
        })?;
        Ok(passes)
    }

    /// The forward passes that may have run within a time, writer by writer, whatever step they stand with. They stand with the
    /// one that was the latest when they were heard of, so steps that overlap hold each other's. Each writer's steps are read from
    /// `around` on in both directions, as far as the time goes.
    pub fn passes_within(
        &self,
        around: StepNumber,
        time: &RangeInclusive<UnixNs>,
    ) -> Result<Vec<ForwardPass>, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let is_before = |pass: &ForwardPass| pass.received < *time.start();
        let is_after = |pass: &ForwardPass| pass.earliest_start() > *time.end();
        let is_wanted = |pass: &ForwardPass| !pass.is_rest() && !is_before(pass) && !is_after(pass);
        let mut sealed: BTreeMap<(&str, u64), Vec<(&Seal, &StepParts)>> = BTreeMap::new();
        for seal in manifest.seals() {
            for parts in &seal.steps {
                sealed.entry((&seal.writer, parts.step)).or_default().push((seal, parts));
            }
        }
        let writers: BTreeSet<&str> = sealed.keys().map(|(writer, _)| *writer).collect();
        let mut found = Vec::new();
        // Says whether those of the step are all on one side of the time; a step without any tells nothing.
        let mut read = |stretches: &[(&Seal, &StepParts)], is_outside: &dyn Fn(&ForwardPass) -> bool| {
            let mut passes = Vec::new();
            for (seal, parts) in stretches {
                passes.extend(seal.passes(self, parts)?);
            }
            let is_end = !passes.is_empty() && passes.iter().all(is_outside);
            found.extend(passes.into_iter().filter(is_wanted));
            Ok::<_, RunError>(is_end)
        };
        for writer in writers {
            for (_, stretches) in sealed.range((writer, 0)..(writer, around.0)).rev() {
                if read(stretches, &is_before)? {
                    break;
                }
            }
            for (_, stretches) in sealed.range((writer, around.0)..=(writer, u64::MAX)) {
                if read(stretches, &is_after)? {
                    break;
                }
            }
        }
        self.for_each_unsealed(&manifest, |record, _| match record {
            Record::ForwardPass(pass) if pass.step.is_some() && is_wanted(&pass) => found.push(*pass),
            _ => {}
        })?;
        Ok(found)
    }

    /// The writers, by name.
    pub fn writers(&self) -> Result<Vec<WriterSummary>, RunError> {
        // A writer that seals and ends meanwhile is read further than the manifest says, never less far.
        let manifest = Newest::read(self)?.manifest;
        // One of which nothing is left but damaged parts is named too.
        let lost = self.lost_parts().into_iter().map(|(writer, _)| writer);
        let names: BTreeSet<Box<str>> =
            self.writer_names()?.into_iter().map(Into::into).chain(lost).collect();
        names.into_iter().map(|name| self.writer_summary(&manifest, name)).collect()
    }

    /// Losses over all writers.
    pub fn dropped(&self) -> Result<Drops, RunError> {
        let manifest = Newest::read(self)?.manifest;
        let mut drops = Drops::default();
        let mut add = |profiles, user_records| {
            drops.profiles += profiles;
            drops.user_records += user_records;
        };
        for sealed in manifest.seals().filter_map(|seal| seal.dropped) {
            add(sealed.profiles, sealed.user_records);
        }
        self.for_each_unsealed(&manifest, |record, _| {
            if let Record::Dropped(count) = record {
                add(count.profiles, count.user_records);
            }
        })?;
        Ok(drops)
    }

    /// Every record that the parts of a manifest do not hold, but for those of steps that were forgotten, one writer after
    /// the other, and whether it comes after the end of its step.
    fn for_each_unsealed(
        &self,
        manifest: &Manifest,
        mut take: impl FnMut(Record, bool),
    ) -> Result<(), RunError> {
        let closed = manifest.closed_steps();
        for writer in self.writer_names()? {
            let mut watch = LateWatch::new(closed.clone());
            let mut cursor = LogCursor::new(self.log_folder(&writer), manifest.sealed_up_to(&writer));
            while let Some(record) = cursor.next()? {
                let late = watch.is_late(&record);
                if !record.step().is_some_and(|step| manifest.forgotten().contains(&step)) {
                    take(record, late);
                }
            }
        }
        Ok(())
    }

    fn writer_summary(&self, manifest: &Manifest, name: Box<str>) -> Result<WriterSummary, RunError> {
        let folder = self.log_folder(&name);
        // Asked before the log is read: a writer that ends meanwhile has set its mark by then.
        let live = presence::is_live(&folder);
        let mut cursor = LogCursor::new(folder.clone(), manifest.sealed_up_to(&name));
        while cursor.next()?.is_some() {}
        let state = match (cursor.ended(), live) {
            (true, _) => WriterState::Ended,
            (false, true) => WriterState::Live,
            (false, false) => WriterState::Interrupted,
        };
        let (mut segments, mut bytes) = (0, 0);
        for file in files::names_in(&folder)? {
            if segment_number(&file).is_some() {
                segments += 1;
                bytes += fs::metadata(folder.join(file)).map_or(0, |metadata| metadata.len());
            }
        }
        let seals = || manifest.seals_of(&name);
        let sealed = seals().flat_map(|seal| seal.damage(self));
        let lost = self.lost_parts().into_iter().filter(|(writer, _)| *writer == name);
        let damage = sealed.chain(cursor.damage().cloned()).chain(lost.map(|(_, damage)| damage)).collect();
        let unknown = cursor.unknown() + seals().map(|seal| seal.unknown).sum::<u64>();
        Ok(WriterSummary { name, state, segments, bytes, unknown, damage })
    }
}

/// What the manifest alone tells of the steps.
fn sealed_tallies(manifest: &Manifest) -> BTreeMap<StepNumber, StepTally> {
    let mut tallies: BTreeMap<StepNumber, StepTally> = BTreeMap::new();
    for parts in manifest.seals().flat_map(|seal| &seal.steps).filter(|parts| parts.samples > 0) {
        tallies.entry(StepNumber(parts.step)).or_default().add_parts(parts);
    }
    for close in manifest.closes() {
        tallies.entry(close.step).or_default().closes.push(close);
    }
    tallies
}

fn sealed_passes(manifest: &Manifest) -> BTreeMap<StepNumber, u64> {
    let mut passes = BTreeMap::new();
    for parts in manifest.seals().flat_map(|seal| &seal.steps) {
        *passes.entry(StepNumber(parts.step)).or_default() += parts.passes_count();
    }
    passes
}

fn parts_of(manifest: &Manifest, step: StepNumber) -> impl Iterator<Item = (&Seal, &StepParts)> {
    let all = manifest.seals().flat_map(|seal| seal.steps.iter().map(move |parts| (seal, parts)));
    all.filter(move |(_, parts)| parts.step == step.0)
}

// === impl StepTally ===

impl StepTally {
    fn add_parts(&mut self, parts: &StepParts) {
        self.late |= parts.late;
        self.requests += parts.requests;
        self.user_spans += parts.user_spans;
        self.sealed_samples.push(parts.samples);
    }

    fn add(&mut self, record: &Record, late: bool) {
        self.late |= late;
        self.samples.extend(sample_key(record));
        match record {
            Record::Profile(_) => self.requests += 1,
            Record::Span(_) => self.user_spans += 1,
            Record::Close(close) => self.closes.push(*close),
            Record::Sample(_) | Record::ForwardPass(_) | Record::Dropped(_) => {}
        }
    }

    fn summary(self, step: StepNumber) -> StepSummary {
        StepSummary {
            step,
            close: StepClose::last_word(self.closes),
            late: self.late,
            requests: self.requests,
            samples: self.samples.len() as u64 + self.sealed_samples.iter().sum::<u64>(),
            user_spans: self.user_spans,
            passes: self.passes,
        }
    }
}
