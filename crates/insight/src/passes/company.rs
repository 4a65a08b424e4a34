//! Who else sat in a request's passes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use rollscope_trace::{ForwardPass, Leg, Profile, RequestId, SampleKey, StepNumber, StepTrace, UnixNs};

use super::{Place, Told, span, told};

/// A request that sat in the same passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Which request.
    pub request: RequestId,
    /// The sample it belongs to, maybe of another step.
    pub sample: SampleKey,
    /// Passes heard of that both sat in.
    pub passes: u64,
}

/// Calls whose passes were told, of all steps that went on in some time: what is needed of them to find who shared passes.
#[derive(Debug, Default)]
pub struct Company(Vec<Seat>);

/// A call, and where it sat.
#[derive(Debug)]
struct Seat {
    request: RequestId,
    sample: SampleKey,
    server: Box<str>,
    told: Told,
    start: UnixNs,
    end: UnixNs,
}

// === impl Company ===

impl Company {
    /// Of a step, and of the steps before and after it as far as they reach into its time: of `others`, in order, those next to it
    /// that had a call under way then. `add` reads one, the step itself as well, and has [`Self::add`] tell whether it had.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn around<E>(
        step: StepNumber,
        others: &[StepNumber],
        mut add: impl FnMut(&mut Self, StepNumber) -> Result<bool, E>,
    ) -> Result<Self, E> {
        let mut company = Self::default();
        add(&mut company, step)?;
        let mut reach = |others: &mut dyn Iterator<Item = &StepNumber>| {
            for other in others {
                if !add(&mut company, *other)? {
                    break;
                }
            }
            Ok(())
        };
        reach(&mut others.iter().rev().filter(|other| **other < step))?;
        reach(&mut others.iter().filter(|other| **other > step))?;
        Ok(company)
    }

    /// Adds the calls of a step that were under way within a time. Says whether there was any, be its passes told or not.
    pub fn add(&mut self, step: &StepTrace, within: &RangeInclusive<UnixNs>) -> bool {
        let mut is_any = false;
        for sample in &step.samples {
            let calls =
                sample.requests.iter().flat_map(|request| request.legs.iter().map(move |leg| (request, leg)));
            for (request, leg) in calls {
                let (start, end) = span(request, leg);
                if start > *within.end() || end < *within.start() {
                    continue;
                }
                is_any = true;
                let Some(told) = told(leg) else { continue };
                let server = Place::of(leg).server.into();
                self.0.push(Seat {
                    request: request.id,
                    sample: sample.key.clone(),
                    server,
                    told,
                    start,
                    end,
                });
            }
        }
        is_any
    }

    /// The other requests that sat in a call's passes too, the closest company first.
    pub(super) fn in_passes(&self, request: &Profile, leg: &Leg, passes: &[&ForwardPass]) -> Vec<Shared> {
        let ((start, end), server) = (span(request, leg), Place::of(leg).server);
        let mut shared: BTreeMap<RequestId, (&SampleKey, u64)> = BTreeMap::new();
        let others = self.0.iter().filter(|seat| seat.request != request.id && *seat.server == *server);
        for seat in others.filter(|seat| seat.start <= end && start <= seat.end) {
            let both = passes.iter().filter(|pass| seat.told.holds(pass)).count() as u64;
            if both > 0 {
                shared.entry(seat.request).or_insert((&seat.sample, 0)).1 += both;
            }
        }
        let shared = shared.into_iter();
        let mut shared: Vec<_> = shared
            .map(|(request, (sample, passes))| Shared { request, sample: sample.clone(), passes })
            .collect();
        shared.sort_by_key(|shared| std::cmp::Reverse(shared.passes));
        shared
    }
}
