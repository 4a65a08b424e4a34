//! The table of legs: a row for each upstream call, with a column for every measure.

use parquet::data_type::ByteArray;
use rollscope_trace::{
    ClockOffset, Fault, Finish, FinishKind, Leg, LegRole, Measure, MeasureSet, Measures, Nanos, Outcome,
    Profile, Reading, Report, RequestId, WorkerRef,
};

use crate::error::RunError;
use crate::parts::rows::{Cells, Rows};
use crate::parts::table::Table;
use crate::texts::SharedTexts;

/// The legs of a part, one after the other.
pub(crate) struct LegRows<'a> {
    rows: &'a Rows,
    left: usize,
    request_id: Cells<ByteArray>,
    role: Cells<ByteArray>,
    worker_url: Cells<ByteArray>,
    worker_instance: Cells<ByteArray>,
    workers: SharedTexts,
    dispatch: Cells<i64>,
    first_byte: Cells<i64>,
    end: Cells<i64>,
    status: Cells<i64>,
    outcome: Cells<ByteArray>,
    error: Cells<ByteArray>,
    finish: Cells<ByteArray>,
    finish_message: Cells<ByteArray>,
    finish_status_code: Cells<i64>,
    weight_version: Cells<ByteArray>,
    worker_request_id: Cells<ByteArray>,
    measures: Vec<(Measure, Cells<f64>)>,
    faults: Cells<ByteArray>,
    clock_offset: Cells<i64>,
    clock_bound: Cells<i64>,
}

pub(crate) fn table(profiles: &[Box<Profile>]) -> Table {
    let count = profiles.iter().map(|profile| profile.legs.len()).sum();
    let mut legs: Vec<(RequestId, i64, &Leg)> = Vec::with_capacity(count);
    for profile in profiles {
        legs.extend((0..).zip(&profile.legs).map(|(number, leg)| (profile.id, number, leg)));
    }
    Table::of(&legs, |rows| {
        rows.ids("request_id", |(id, ..)| *id);
        rows.ints("leg", |(_, number, _)| *number);
        rows.texts("role", |(.., leg)| leg.role.name());
        rows.texts("worker_url", |(.., leg)| &leg.worker.url);
        rows.texts("worker_instance", |(.., leg)| &leg.worker.instance);
        rows.ints("dispatch_after_ns", |(.., leg)| leg.dispatch.0 as i64);
        rows.ints_or_none("first_byte_after_ns", |(.., leg)| leg.first_byte.map(|at| at.0 as i64));
        rows.ints("end_after_ns", |(.., leg)| leg.end.0 as i64);
        rows.ints_or_none("status", |(.., leg)| leg.status.map(Into::into));
        rows.texts("outcome", |(.., leg)| leg.outcome.name());
        rows.long_texts_or_none("error", |(.., leg)| leg.error.as_deref());
        rows.texts_or_none("finish", |(.., leg)| leg.report.finish.as_ref().map(|finish| finish.kind.name()));
        rows.long_texts_or_none("finish_message", |(.., leg)| leg.report.finish.as_ref()?.message.as_deref());
        rows.ints_or_none("finish_status_code", |(.., leg)| {
            leg.report.finish.as_ref()?.status_code.map(Into::into)
        });
        rows.texts_or_none("weight_version", |(.., leg)| leg.report.weight_version.as_deref());
        rows.texts_or_none("worker_request_id", |(.., leg)| leg.report.worker_request_id.as_deref());
        // Most measures are told by nobody, or by all.
        let told = rows
            .rows()
            .iter()
            .fold(MeasureSet::NONE, |told, (.., leg)| told.or(leg.report.measures.present()));
        for measure in Measure::all() {
            if told.has(measure) {
                rows.doubles_or_none(measure.name(), |(.., leg)| leg.report.measures.value(measure));
            } else {
                rows.no_doubles(measure.name());
            }
        }
        rows.made_texts_or_none("faults", |(.., leg)| faults_text(&leg.report.measures));
        rows.ints_or_none("clock_offset_ns", |(.., leg)| leg.clock.map(|clock| clock.offset_ns));
        rows.ints_or_none("clock_bound_ns", |(.., leg)| leg.clock.map(|clock| clock.bound.0 as i64));
    })
}

/// `queue_time=negative;e2e_latency=not_finite`: what is wrong with readings, nothing when all are plausible.
fn faults_text(measures: &Measures) -> Option<String> {
    if measures.faults().is_empty() {
        return None;
    }
    let mut text = String::new();
    for (measure, fault) in measures.iter().filter_map(|(measure, reading)| Some((measure, reading.fault?))) {
        let separator = if text.is_empty() { "" } else { ";" };
        text.extend([separator, measure.name(), "=", fault.name()]);
    }
    Some(text)
}

/// Reads [`faults_text`]. A fault that is not known here is still one.
fn fault_of(measure: Measure, text: &str) -> Option<Fault> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    let mut faults = pairs.filter(|(name, _)| *name == measure.name());
    faults.next().map(|(_, fault)| Fault::from_name(fault).unwrap_or(Fault::NotANumber))
}

// === impl LegRows ===

impl<'a> LegRows<'a> {
    pub(crate) fn new(rows: &'a Rows) -> Result<Self, RunError> {
        Ok(Self {
            rows,
            left: rows.len(),
            request_id: rows.texts("request_id")?,
            role: rows.texts("role")?,
            worker_url: rows.texts("worker_url")?,
            worker_instance: rows.texts("worker_instance")?,
            workers: SharedTexts::default(),
            dispatch: rows.ints("dispatch_after_ns")?,
            first_byte: rows.ints("first_byte_after_ns")?,
            end: rows.ints("end_after_ns")?,
            status: rows.ints("status")?,
            outcome: rows.texts("outcome")?,
            error: rows.texts("error")?,
            finish: rows.texts("finish")?,
            finish_message: rows.texts("finish_message")?,
            finish_status_code: rows.ints("finish_status_code")?,
            weight_version: rows.texts("weight_version")?,
            worker_request_id: rows.texts("worker_request_id")?,
            measures: Measure::all()
                .map(|measure| Ok((measure, rows.doubles(measure.name())?)))
                .collect::<Result<_, _>>()?,
            faults: rows.texts("faults")?,
            clock_offset: rows.ints("clock_offset_ns")?,
            clock_bound: rows.ints("clock_bound_ns")?,
        })
    }

    /// The next leg, which must be of this request; nothing after the last.
    pub(crate) fn next(&mut self, request: RequestId) -> Result<Option<Leg>, RunError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if RequestId::parse(&self.request_id.next_text_or_empty()) != Some(request) {
            return Err(self.rows.damaged("its legs are not those of its requests"));
        }
        Ok(Some(Leg {
            role: LegRole::from_name(&self.role.next_text_or_empty())
                .ok_or_else(|| self.rows.damaged("unknown role"))?,
            worker: WorkerRef {
                url: self.workers.of(&self.worker_url.next_text_or_empty()),
                instance: self.workers.of(&self.worker_instance.next_text_or_empty()),
            },
            dispatch: Nanos(self.dispatch.next_or_default() as u64),
            first_byte: self.first_byte.next().map(|at| Nanos(at as u64)),
            end: Nanos(self.end.next_or_default() as u64),
            status: self.status.next().map(|status| status as u16),
            outcome: Outcome::from_name(&self.outcome.next_text_or_empty())
                .ok_or_else(|| self.rows.damaged("unknown outcome"))?,
            error: self.error.next_text(),
            clock: self.clock(),
            report: self.report(),
        }))
    }

    fn clock(&mut self) -> Option<ClockOffset> {
        let (offset_ns, bound) = (self.clock_offset.next(), self.clock_bound.next());
        Some(ClockOffset { offset_ns: offset_ns?, bound: Nanos(bound? as u64) })
    }

    fn report(&mut self) -> Report {
        let faults = self.faults.next_text().unwrap_or_default();
        let reading = |(measure, cells): &mut (Measure, Cells<f64>)| {
            Some((*measure, Reading { value: cells.next()?, fault: fault_of(*measure, &faults) }))
        };
        let (message, status_code) = (self.finish_message.next_text(), self.finish_status_code.next());
        let finish = self.finish.next_text();
        Report {
            measures: self.measures.iter_mut().filter_map(reading).collect(),
            finish: finish.map(|kind| Finish {
                kind: FinishKind::from_name(&kind),
                message,
                status_code: status_code.map(|code| code as u16),
            }),
            weight_version: self.weight_version.next_text(),
            worker_request_id: self.worker_request_id.next_text(),
        }
    }
}
