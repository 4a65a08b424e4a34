//! The numbers of a report, and sets of measures by which a few of them are found among many reports.

use crate::measure::{Measure, Unit};
use crate::report::{Fault, Reading};
use crate::time::{Nanos, UnixNs};

/// Numbers by measure; at most one of each.
///
/// A bit for each measure says whether it is there: a value is found without a search, and what is read of a million
/// reports is their values one after the other.
#[derive(Clone, Default)]
pub struct Measures {
    present: MeasureSet,
    faulty: MeasureSet,
    /// Of those that are present, in their order.
    values: Vec<f64>,
    /// Of those that are faulty, in their order.
    faults: Box<[Fault]>,
}

/// A set of measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasureSet(u64);

const USUAL_MEASURES: usize = 20;

// === impl Measures ===

impl Measures {
    /// The reading of a measure, plausible or not.
    pub fn get(&self, measure: Measure) -> Option<Reading> {
        let value = self.value(measure)?;
        Some(Reading { value, fault: self.faulty.place(measure).map(|at| self.faults[at]) })
    }

    /// The value of a measure, plausible or not.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        self.present.place(measure).map(|at| self.values[at])
    }

    /// The value of a measure if it is plausible.
    pub fn good(&self, measure: Measure) -> Option<f64> {
        let at = self.present.place(measure).filter(|_| !self.faulty.has(measure))?;
        Some(self.values[at])
    }

    /// A plausible duration.
    pub fn duration(&self, measure: Measure) -> Option<Nanos> {
        self.good(measure).and_then(Nanos::from_secs_f64)
    }

    /// A plausible point in time, by the worker's clock.
    pub fn stamp(&self, measure: Measure) -> Option<UnixNs> {
        self.good(measure).and_then(UnixNs::from_secs_f64)
    }

    /// How long a worker that does everything computed the prompt, and how long it generated; nothing unless all
    /// three stamps were taken and are in order.
    pub fn prompt_and_generation(&self) -> Option<(Nanos, Nanos)> {
        let between = |from, to| Nanos::from_secs_f64(self.good(to)? - self.good(from)?);
        let prompt = between(Measure::ForwardEntryTime, Measure::PrefillFinishedTime)?;
        Some((prompt, between(Measure::PrefillFinishedTime, Measure::RequestFinishedTs)?))
    }

    /// The measures that are there.
    pub fn present(&self) -> MeasureSet {
        self.present
    }

    /// The values of the measures that are there, in their order, plausible or not.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The measures whose values are plausible.
    pub fn plausible(&self) -> MeasureSet {
        self.present.without(self.faulty)
    }

    /// The values of those measures of a set that are there and plausible.
    pub fn plausible_of(&self, wanted: MeasureSet) -> impl Iterator<Item = (Measure, f64)> {
        let wanted = self.plausible().and(wanted);
        let values = self.present.iter().zip(self.values.iter().copied());
        values.filter(move |(measure, _)| wanted.has(*measure))
    }

    /// What is wrong with those that are not plausible.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Sets or replaces a reading.
    pub fn set(&mut self, measure: Measure, reading: Reading) {
        if let Some(at) = self.present.place(measure) {
            self.values[at] = reading.value;
        } else {
            self.present = self.present.with(measure);
            // As many as a worker tells.
            if self.values.capacity() == 0 {
                self.values.reserve_exact(USUAL_MEASURES);
            }
            self.values.insert(self.present.before(measure), reading.value);
        }
        self.set_fault(measure, reading.fault);
    }

    /// Flags a reading, or takes the flag away.
    pub(crate) fn set_fault(&mut self, measure: Measure, fault: Option<Fault>) {
        if fault.is_none() && !self.faulty.has(measure) {
            return;
        }
        // Faults are rare, so that they are simply written anew.
        let mut faults = std::mem::take(&mut self.faults).into_vec();
        if let Some(at) = self.faulty.place(measure) {
            faults.remove(at);
            self.faulty = self.faulty.without(MeasureSet::NONE.with(measure));
        }
        if let Some(fault) = fault {
            self.faulty = self.faulty.with(measure);
            faults.insert(self.faulty.before(measure), fault);
        }
        self.faults = faults.into();
    }

    /// Flags those of a set that are there.
    pub(crate) fn flag(&mut self, set: MeasureSet, fault: Fault) {
        let set = self.present.and(set);
        if set.is_empty() {
            return;
        }
        let faulty = self.faulty.or(set);
        let before = |measure| self.faulty.place(measure).map(|at| self.faults[at]);
        let fault_of = |measure| if set.has(measure) { Some(fault) } else { before(measure) };
        (self.faults, self.faulty) = (faulty.iter().filter_map(fault_of).collect(), faulty);
    }

    /// All readings, in the order of [`Measure`].
    pub fn iter(&self) -> impl Iterator<Item = (Measure, Reading)> {
        let reading = |(measure, value): (Measure, &f64)| {
            let fault = self.faulty.place(measure).map(|at| self.faults[at]);
            (measure, Reading { value: *value, fault })
        };
        self.present.iter().zip(&self.values).map(reading)
    }
}

impl PartialEq for Measures {
    /// Equal to the bit, as readings are.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl std::fmt::Debug for Measures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(Measure, Reading)> for Measures {
    fn from_iter<I: IntoIterator<Item = (Measure, Reading)>>(readings: I) -> Self {
        let mut measures = Self::default();
        for (measure, reading) in readings {
            measures.set(measure, reading);
        }
        measures
    }
}

// === impl MeasureSet ===

impl MeasureSet {
    /// Of none.
    pub const NONE: Self = Self(0);
    /// Of all.
    pub const ALL: Self = Self(u64::MAX >> (64 - Measure::COUNT));
    /// Those in seconds: what a worker took for something.
    pub const DURATIONS: Self = {
        let (mut set, mut at) = (Self::NONE, 0);
        while at < Measure::COUNT {
            let measure = Measure::ALL[at];
            if matches!(measure.unit(), Unit::Seconds) {
                set = set.with(measure);
            }
            at += 1;
        }
        set
    };
    /// Those of them that a worker tells only where it was started to; its whole time every one tells by itself.
    pub const TIMINGS: Self = Self(Self::DURATIONS.0 & !(1 << Measure::E2eLatency as u64));
    /// Those of the stages of a prefill/decode pair.
    pub const STAGES: Self = Self(Self::TIMINGS.0 & !(1 << Measure::QueueTime as u64));

    /// Those for which something holds.
    pub fn of(holds: impl Fn(Measure) -> bool) -> Self {
        Measure::all().filter(|measure| holds(*measure)).fold(Self::NONE, Self::with)
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, measure: Measure) -> Self {
        Self(self.0 | 1 << measure as u64)
    }

    /// Without those of another.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that are in another, too.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a measure is in it.
    pub const fn has(self, measure: Measure) -> bool {
        self.0 >> measure as u64 & 1 == 1
    }

    /// Whether there is none in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its measures, in their order.
    pub fn iter(self) -> impl Iterator<Item = Measure> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            Measure::ALL.get(lowest).copied()
        })
    }

    /// How many come before a measure.
    const fn before(self, measure: Measure) -> usize {
        (self.0 & ((1 << measure as u64) - 1)).count_ones() as usize
    }

    /// Where a measure stands among those of the set.
    fn place(self, measure: Measure) -> Option<usize> {
        self.has(measure).then(|| self.before(measure))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reading() -> impl Strategy<Value = (Measure, Reading)> {
        let fault = prop::option::of(prop::sample::select(&Fault::ALL[..]));
        (prop::sample::select(&Measure::ALL[..]), any::<f64>(), fault)
            .prop_map(|(measure, value, fault)| (measure, Reading { value, fault }))
    }

    proptest! {
        #[test]
        fn the_last_reading_of_each_measure_is_there(
            readings in prop::collection::vec(reading(), 0..60),
            wanted in prop::collection::vec(prop::sample::select(&Measure::ALL[..]), 0..20),
        ) {
            let measures: Measures = readings.iter().copied().collect();
            let expected: std::collections::BTreeMap<Measure, Reading> = readings.into_iter().collect();
            prop_assert!(measures.iter().eq(expected.iter().map(|(measure, reading)| (*measure, *reading))));
            let wanted = wanted.into_iter().fold(MeasureSet::NONE, MeasureSet::with);
            for measure in Measure::all() {
                prop_assert_eq!(measures.get(measure), expected.get(&measure).copied());
                let good = expected.get(&measure).and_then(|reading| reading.good());
                prop_assert_eq!(measures.good(measure).map(f64::to_bits), good.map(f64::to_bits));
            }
            let plausible: Vec<_> =
                measures.plausible_of(wanted).map(|(measure, value)| (measure, value.to_bits())).collect();
            let good = expected.iter().filter(|(measure, reading)| wanted.has(**measure) && reading.fault.is_none());
            let good: Vec<_> = good.map(|(measure, reading)| (*measure, reading.value.to_bits())).collect();
            prop_assert_eq!(plausible, good);
            let faults: Vec<_> = expected.values().filter_map(|reading| reading.fault).collect();
            prop_assert_eq!(measures.faults(), &faults[..]);
            prop_assert!(measures.present().iter().eq(expected.keys().copied()));
            let values = expected.values().map(|reading| reading.value.to_bits());
            prop_assert!(measures.values().iter().map(|value| value.to_bits()).eq(values));
        }
    }

    #[test]
    fn durations_are_those_in_seconds() {
        assert_eq!(MeasureSet::DURATIONS, MeasureSet::of(|measure| measure.unit() == Unit::Seconds));
        assert!(MeasureSet::DURATIONS.has(Measure::E2eLatency));
        let stages = MeasureSet::DURATIONS.iter().filter(|measure| measure.name().starts_with("pd_"));
        assert!(stages.eq(MeasureSet::STAGES.iter()));
        assert!(MeasureSet::TIMINGS.iter().eq(MeasureSet::STAGES.iter().chain([Measure::QueueTime])));
        assert!(!MeasureSet::DURATIONS.has(Measure::RequestReceivedTs) && MeasureSet::NONE.is_empty());
    }
}
