//! The drawing: seconds over memory, one panel for the uniform grid, one for the large join.

use std::path::Path;

use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::prelude::*;

use crate::cell::{Record, Workload};
use crate::grid::Shape;
use crate::{Error, Result};

const SIZE: (u32, u32) = (960, 380);

/// The engines with their colours, in the order of the legend.
const ENGINES: [(&str, RGBColor); 4] = [
    ("grace", RGBColor(0, 110, 190)),
    ("sort_merge", RGBColor(210, 120, 0)),
    ("duckdb", RGBColor(130, 130, 0)),
    ("hash", RGBColor(120, 120, 120)),
];

/// Draws what was measured into a file.
pub(crate) fn draw(file: &Path, records: &[Record]) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(told)?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    let title = "in memory: budget in % of the build";
    panel(&left, title, Workload::Grid(Shape::Uniform), records)?;
    let title = "two Parquet files of 20 M rows: pool in MB";
    panel(&right, title, Workload::Large, records)?;
    area.present().map_err(told)
}

fn told(error: impl std::fmt::Display) -> Error {
    error.to_string().into()
}

/// One workload: a line for each engine over the limits, the smallest at the right.
fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    title: &str,
    workload: Workload,
    records: &[Record],
) -> Result<()> {
    let of_workload = |record: &&Record| record.cell.workload == workload;
    let records: Vec<&Record> = records.iter().filter(of_workload).collect();
    let mut limits: Vec<usize> = records.iter().map(|record| record.cell.limit).collect();
    // No limit comes first, then the largest.
    limits.sort_by_key(|limit| std::cmp::Reverse(if *limit == 0 { usize::MAX } else { *limit }));
    limits.dedup();
    let most = records
        .iter()
        .filter_map(|r| r.seconds())
        .fold(0.0, f64::max);
    if limits.is_empty() {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(45)
        .build_cartesian_2d(Places::of(&limits), 0.0..most * 1.1)
        .map_err(told)?;
    let name = |place: &f64| {
        let limit = numbered(&limits).find(|(at, _)| (at - place).abs() < 0.1);
        match limit {
            None => String::new(),
            Some((_, 0)) => "no limit".to_owned(),
            Some((_, limit)) => limit.to_string(),
        }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_label_formatter(&name)
        .y_desc("seconds")
        .draw()
        .map_err(told)?;
    for (engine, colour) in ENGINES {
        let points = points(engine, &limits, &records);
        if points.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))
            .map_err(told)?
            .label(engine)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        let dots = points.iter().map(|at| Circle::new(*at, 3, colour.filled()));
        chart.draw_series(dots).map_err(told)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(RGBColor(200, 200, 200))
        .background_style(WHITE)
        .draw()
        .map_err(told)
}

/// The limits with their places.
fn numbered(limits: &[usize]) -> impl Iterator<Item = (f64, usize)> {
    (0_u32..).map(f64::from).zip(limits.iter().copied())
}

/// An engine's place and seconds at each limit at which it finished.
fn points(engine: &str, limits: &[usize], records: &[&Record]) -> Vec<(f64, f64)> {
    let point = |(at, limit): (f64, usize)| {
        let mut records = records.iter();
        let cell = records.find(|r| r.cell.engine == engine && r.cell.limit == limit)?;
        Some((at, cell.seconds()?))
    };
    numbered(limits).filter_map(point).collect()
}

/// So many places beside each other, 0 to the last.
struct Places(u32);

impl Places {
    fn of(limits: &[usize]) -> Self {
        Self(u32::try_from(limits.len()).unwrap_or(u32::MAX))
    }
}

impl Ranged for Places {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let width = f64::from(limit.1 - limit.0);
        #[expect(clippy::cast_possible_truncation, reason = "pixels of a drawing")]
        let at = (width * (value + 0.5) / f64::from(self.0)) as i32;
        limit.0 + at
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        (0..self.0).map(f64::from).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        -0.5..f64::from(self.0) - 0.5
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Places {}
