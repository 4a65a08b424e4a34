//! The calls of a step's samples, as far as they tell who sat in which forward passes.
//!
//! They are kept of a step that is too large to be read, tile by tile, and come back as samples that have nothing else.

use rollscope_trace::{
    Leg, LegRole, Measure, Nanos, Profile, Reading, Report, RequestId, SampleKey, SampleMark, SampleTrace,
    StepNumber, StepTrace, UnixNs, WorkerRef,
};
use serde::{Deserialize, Serialize};

use crate::columns::{Column, Columns, Table};
use crate::step::StepView;
use crate::tile::TILE_ROWS;

/// Measures that tell where a call sat.
const SEAT: [(&str, Measure); 3] = [
    ("rank", Measure::DpRank),
    ("first_pass", Measure::ForwardPassFirst),
    ("last_pass", Measure::ForwardPassLast),
];

const ROLES: [LegRole; 3] = [LegRole::Regular, LegRole::Prefill, LegRole::Decode];

/// What stands beside the columns.
#[derive(Serialize, Deserialize)]
struct Meta {
    /// URL and instance of each.
    workers: Vec<(Box<str>, Box<str>)>,
}

/// The calls of the samples of a tile.
pub(crate) fn of_tile(step: &StepView, tile: u32) -> Result<Vec<u8>, serde_json::Error> {
    let first = tile * TILE_ROWS;
    let rows = (first..first + TILE_ROWS).map_while(|row| Some((row, step.sample(row)?)));
    let requests: Vec<(u32, &Profile)> =
        rows.flat_map(|(row, sample)| sample.requests.iter().map(move |request| (row, request))).collect();
    let legs: Vec<&Leg> = requests.iter().flat_map(|(_, request)| &request.legs).collect();
    let mut workers: Vec<&WorkerRef> = Vec::new();
    let mut numbers = Vec::new();
    for leg in &legs {
        let known = workers.iter().position(|worker| **worker == leg.worker);
        numbers.push(known.unwrap_or(workers.len()) as u32);
        if known.is_none() {
            workers.push(&leg.worker);
        }
    }
    let of_legs = |value: &dyn Fn(&Leg) -> f64| Column::F64(legs.iter().map(|leg| value(leg)).collect());
    let mut columns = Columns::default();
    columns.put("row", &Column::U32(requests.iter().map(|(row, _)| *row).collect()));
    columns
        .put("legs", &Column::U32(requests.iter().map(|(_, request)| request.legs.len() as u32).collect()));
    // In halves, since a double does not hold it.
    let half =
        |bits: u32| Column::U32(requests.iter().map(|(_, of)| (of.arrival.0 >> bits) as u32).collect());
    columns.put("arrival_low", &half(0));
    columns.put("arrival_high", &half(32));
    columns.put("role", &Column::U8(legs.iter().map(|leg| leg.role as u8).collect()));
    columns.put("worker", &Column::U32(numbers));
    columns.put("dispatch_ns", &of_legs(&|leg| leg.dispatch.0 as f64));
    columns.put("end_ns", &of_legs(&|leg| leg.end.0 as f64));
    for (name, measure) in SEAT {
        columns.put(name, &of_legs(&|leg| leg.report.measures.good(measure).unwrap_or(f64::NAN)));
    }
    let workers = workers.iter().map(|worker| ((*worker.url).into(), (*worker.instance).into()));
    columns.into_bytes(&Meta { workers: workers.collect() })
}

/// The samples of a tile with their calls; nothing where it cannot be read. They and their requests are called by number.
pub(crate) fn read(block: &[u8], step: StepNumber, tile: u32) -> Option<StepTrace> {
    let table: Table<'_, Meta> = Table::of(block)?;
    let numbers = |name: &str| match table.column(name)? {
        Column::U32(values) => Some(values),
        _ => None,
    };
    let mut legs = legs(&table)?.into_iter();
    let first = tile * TILE_ROWS;
    let sample = |row: u32| {
        let key = SampleKey { step, group: None, sample: row.to_string().into() };
        let mark = SampleMark::new(key.clone());
        SampleTrace { key, requests: Vec::new(), spans: Vec::new(), mark }
    };
    let mut samples: Vec<SampleTrace> = (first..first + TILE_ROWS).map(sample).collect();
    let arrivals = numbers("arrival_high")?.into_iter().zip(numbers("arrival_low")?);
    let requests = numbers("row")?.into_iter().zip(numbers("legs")?).zip(arrivals);
    for ((row, count), (high, low)) in requests {
        let sample = samples.get_mut(row.checked_sub(first)? as usize)?;
        let number = sample.requests.len() as u128;
        // Another for each request of each step; what is drawn for requests that are read hardly ever begins with a row of ones.
        let id = RequestId(!((u128::from(step.0) << 64) | (u128::from(row) << 32) | number));
        let arrival = UnixNs((u64::from(high) << 32 | u64::from(low)) as i64);
        let legs = legs.by_ref().take(count as usize).collect();
        sample.requests.push(Profile { legs, ..Profile::new(id, arrival, Nanos(0)) });
    }
    Some(StepTrace { step, samples, close: None })
}

fn legs(table: &Table<'_, Meta>) -> Option<Vec<Leg>> {
    let (Column::U8(roles), Column::U32(workers)) = (table.column("role")?, table.column("worker")?) else {
        return None;
    };
    let numbers = |name: &str| match table.column(name)? {
        Column::F64(values) => Some(values),
        _ => None,
    };
    let (dispatch, end) = (numbers("dispatch_ns")?, numbers("end_ns")?);
    let seats: Vec<_> = SEAT.iter().map(|(name, of)| Some((*of, numbers(name)?))).collect::<Option<_>>()?;
    let known = &table.meta().workers;
    let known: Vec<_> = known
        .iter()
        .map(|(url, instance)| WorkerRef { url: (**url).into(), instance: (**instance).into() })
        .collect();
    let leg = |(at, role): (usize, u8)| {
        let told = seats.iter().filter_map(|(measure, values)| Some((*measure, *values.get(at)?)));
        let told = told.filter(|(_, value)| !value.is_nan());
        let measures = told.map(|(measure, value)| (measure, Reading { value, fault: None })).collect();
        let worker = known.get(*workers.get(at)? as usize)?.clone();
        let (dispatch, end) = (Nanos(*dispatch.get(at)? as u64), Nanos(*end.get(at)? as u64));
        let role = *ROLES.get(usize::from(role))?;
        Some(Leg {
            report: Report { measures, ..Report::default() },
            ..Leg::new(role, worker, dispatch, end)
        })
    };
    roles.into_iter().enumerate().map(leg).collect()
}
