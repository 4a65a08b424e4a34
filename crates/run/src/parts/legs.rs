//! The table of legs: a row for each upstream call, with a column for every measure.

use parquet::data_type::ByteArray;
use rollscope_trace::{
    ClockOffset, Fault, Finish, FinishKind, Leg, LegRole, Measure, Measures, Nanos, Outcome, Profile,
    Reading, Report, RequestId, WorkerRef,
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
    let mut table = Table::for_rows(profiles.iter().map(|profile| profile.legs.len()).sum());
    for profile in profiles {
        for (index, leg) in profile.legs.iter().enumerate() {
            let finish = leg.report.finish.as_ref();
            let mut row = table.row();
            row.text("request_id", &profile.id.to_string());
            row.int("leg", index as i64);
            row.text("role", leg.role.name());
            row.text("worker_url", &leg.worker.url);
            row.text("worker_instance", &leg.worker.instance);
            row.int("dispatch_after_ns", leg.dispatch.0 as i64);
            row.int_or_none("first_byte_after_ns", leg.first_byte.map(|at| at.0 as i64));
            row.int("end_after_ns", leg.end.0 as i64);
            row.int_or_none("status", leg.status.map(Into::into));
            row.text("outcome", leg.outcome.name());
            row.text_or_none("error", leg.error.as_deref());
            row.text_or_none("finish", finish.map(|finish| finish.kind.name()));
            row.text_or_none("finish_message", finish.and_then(|finish| finish.message.as_deref()));
            row.int_or_none(
                "finish_status_code",
                finish.and_then(|finish| finish.status_code.map(Into::into)),
            );
            row.text_or_none("weight_version", leg.report.weight_version.as_deref());
            row.text_or_none("worker_request_id", leg.report.worker_request_id.as_deref());
            for measure in Measure::all() {
                let reading = leg.report.measures.get(measure);
                row.double_or_none(measure.name(), reading.map(|reading| reading.value));
            }
            row.text_or_none("faults", faults_text(&leg.report.measures).as_deref());
            row.int_or_none("clock_offset_ns", leg.clock.map(|clock| clock.offset_ns));
            row.int_or_none("clock_bound_ns", leg.clock.map(|clock| clock.bound.0 as i64));
        }
    }
    table
}

/// `queue_time=negative;e2e_latency=not_finite`: what is wrong with readings, nothing when all are plausible.
fn faults_text(measures: &Measures) -> Option<String> {
    let faults: Vec<_> = measures
        .iter()
        .filter_map(|(measure, reading)| Some(format!("{}={}", measure.name(), reading.fault?.name())))
        .collect();
    (!faults.is_empty()).then(|| faults.join(";"))
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
