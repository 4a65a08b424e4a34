//! Which passes a fit is made of: few, and from the whole range of loads.
//!
//! The latest passes alone would be all alike under steady load, and tell nothing of any other. So the range of each feature
//! is cut into equal parts, and when there is one sample too many the oldest goes of the cell that has most.

use std::collections::VecDeque;

/// A pass as a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// One or two features, then 0.
    pub(super) features: [f64; 2],
    pub(super) wall_s: f64,
}

/// The samples kept.
#[derive(Debug)]
pub(super) struct Samples {
    dimensions: usize,
    /// Cells that have samples, in the order in which they first had one.
    cells: Vec<(Cell, VecDeque<Sample>)>,
    count: usize,
    /// The range of each feature: no sample, no range.
    bounds: [Option<(f64, f64)>; 2],
}

/// The mean of the latest values, beginning with the first that is not 0.
#[derive(Debug, Default)]
pub(super) struct MovingAverage(VecDeque<f64>);

/// Place in the grid.
type Cell = [usize; 2];

/// Samples kept at most; also the length of a moving average.
const MAX_SAMPLES: usize = 64;
/// Parts of the range of an only feature.
const PARTS_OF_ONE: usize = 16;
/// Parts of the range of each of two.
const PARTS_OF_TWO: usize = 4;

// === impl Samples ===

impl Samples {
    pub(super) fn new(dimensions: usize) -> Self {
        Self { dimensions, cells: Vec::new(), count: 0, bounds: [None; 2] }
    }

    pub(super) fn add(&mut self, sample: Sample) {
        if self.widen(sample) {
            let all = self.all();
            self.cells.clear();
            for sample in all {
                self.put(sample);
            }
        }
        self.put(sample);
        self.count += 1;
        if self.count > MAX_SAMPLES {
            self.retire();
        }
    }

    /// All samples, cell by cell.
    pub(super) fn all(&self) -> Vec<Sample> {
        self.cells.iter().flat_map(|(_, samples)| samples).copied().collect()
    }

    /// Whether the sample is out of a range, which then holds it.
    fn widen(&mut self, sample: Sample) -> bool {
        let mut is_wider = false;
        for (bounds, value) in self.bounds.iter_mut().zip(sample.features).take(self.dimensions) {
            let wider = bounds.map_or((value, value), |(least, most)| (least.min(value), most.max(value)));
            is_wider |= *bounds != Some(wider);
            *bounds = Some(wider);
        }
        is_wider
    }

    fn put(&mut self, sample: Sample) {
        let cell = self.cell(sample);
        match self.cells.iter_mut().find(|(other, _)| *other == cell) {
            Some((_, samples)) => samples.push_back(sample),
            None => self.cells.push((cell, VecDeque::from([sample]))),
        }
    }

    fn cell(&self, sample: Sample) -> Cell {
        let parts = if self.dimensions == 1 { PARTS_OF_ONE } else { PARTS_OF_TWO };
        let mut cell = [0, 0];
        for ((part, bounds), value) in cell.iter_mut().zip(self.bounds).zip(sample.features) {
            if let Some((least, most)) = bounds.filter(|(least, most)| most > least) {
                *part = (((value - least) / (most - least) * parts as f64) as usize).min(parts - 1);
            }
        }
        cell
    }

    fn retire(&mut self) {
        let most = self.cells.iter().map(|(_, samples)| samples.len()).max().unwrap_or(0);
        if let Some(index) = self.cells.iter().position(|(_, samples)| samples.len() == most) {
            self.cells[index].1.pop_front();
            self.count -= 1;
            if self.cells[index].1.is_empty() {
                self.cells.remove(index);
            }
        }
    }
}

// === impl MovingAverage ===

impl MovingAverage {
    pub(super) fn add(&mut self, value: f64) {
        if value == 0.0 && self.0.is_empty() {
            return;
        }
        if self.0.len() == MAX_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    /// 0 of nothing.
    pub(super) fn value(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }
}
