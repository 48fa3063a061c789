//! The results: a table for people, or JSON, one object a line.

use std::io::{Write, stdout};

use datafusion::execution::memory_pool::human_readable_size;
use serde_json::{Value, json};

use crate::Result;
use crate::args::{Args, Format, Memory};
use crate::engine::Engine;
use crate::progress;
use crate::queries::Query;
use crate::scans::Scans;
use crate::worker::Outcome;

/// What an engine did with a query, in one run or several.
pub(crate) struct Record {
    /// The query's name.
    pub(crate) query: String,
    /// The engine.
    pub(crate) engine: Engine,
    outcomes: Vec<Outcome>,
    equal: Vec<Option<bool>>,
}

impl Record {
    /// A record without runs.
    pub(crate) fn new(query: &str, engine: Engine) -> Self {
        Self {
            query: query.to_owned(),
            engine,
            outcomes: vec![],
            equal: vec![],
        }
    }

    /// Adds a run, and whether its answer was the reference's, if there is one.
    pub(crate) fn add(&mut self, outcome: Outcome, equal: Option<bool>) {
        self.outcomes.push(outcome);
        self.equal.push(equal);
    }

    /// Whether every run gave the right answer.
    pub(crate) fn is_right(&self) -> bool {
        self.error().is_none() && self.equal() == Some(true)
    }

    /// The first error of a run.
    fn error(&self) -> Option<&str> {
        self.outcomes.iter().find_map(|run| run.error.as_deref())
    }

    /// Whether all answers were equal; `None` if an answer or the reference is missing.
    fn equal(&self) -> Option<bool> {
        if self.equal.contains(&Some(false)) {
            return Some(false);
        }
        (!self.equal.contains(&None)).then_some(true)
    }

    fn rows(&self) -> Option<u64> {
        match self.error() {
            Some(_) => None,
            None => self.median(|run| run.rows),
        }
    }

    /// The median over the runs.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let mut known: Vec<f64> = self.outcomes.iter().filter_map(|run| run.seconds).collect();
        known.sort_unstable_by(f64::total_cmp);
        let (low, high) = middle(&known)?;
        Some(f64::midpoint(low, high))
    }

    /// How many joins of this crate the plan has.
    pub(crate) fn grace_nodes(&self) -> u64 {
        self.median(|run| run.grace_nodes).unwrap_or(0)
    }

    /// What the scans of the last run read.
    pub(crate) fn scans(&self) -> Option<Scans> {
        self.outcomes.last().and_then(|run| run.scans)
    }

    fn median(&self, number: impl Fn(&Outcome) -> Option<u64>) -> Option<u64> {
        let mut known: Vec<u64> = self.outcomes.iter().filter_map(number).collect();
        known.sort_unstable();
        let (low, high) = middle(&known)?;
        Some(u64::midpoint(low, high))
    }

    fn to_json(&self) -> Value {
        json!({
            "query": self.query,
            "engine": self.engine.to_string(),
            "ok": self.error().is_none(),
            "error": self.error(),
            "rows": self.rows(),
            "answer_equal": self.equal(),
            "seconds": self.seconds(),
            "pool_peak_bytes": self.median(|run| run.pool_peak),
            "process_peak_bytes": self.median(|run| run.process_peak),
            "spilled_bytes": self.median(|run| run.spilled_bytes),
            "spill_files": self.median(|run| run.spill_files),
            "plan_spilled_bytes": self.median(|run| run.plan_spilled_bytes),
            "grace_nodes": self.median(|run| run.grace_nodes),
            "scan_rows": self.scans().map(|scans| scans.rows),
        })
    }

    /// The cells of the table, in the order of [`COLUMNS`].
    fn cells(&self) -> [String; 9] {
        let size = |bytes: Option<u64>| {
            let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
            shown(bytes, human_readable_size)
        };
        let outcome = match (self.error(), self.rows()) {
            (Some(error), _) => error.lines().next().unwrap_or("error").to_owned(),
            (None, rows) => shown(rows, |rows| format!("{rows} rows")),
        };
        [
            self.query.clone(),
            self.engine.to_string(),
            outcome,
            shown(self.seconds(), |seconds| format!("{seconds:.2}")),
            size(self.median(|run| run.pool_peak)),
            size(self.median(|run| run.process_peak)),
            size(self.median(|run| run.spilled_bytes)),
            shown(self.median(|run| run.spill_files), |files| {
                files.to_string()
            }),
            shown(self.equal(), |equal| {
                if equal { "yes" } else { "NO" }.to_owned()
            }),
        ]
    }
}

fn shown<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// The two values in the middle, the same one twice if their number is odd.
fn middle<T: Copy>(sorted: &[T]) -> Option<(T, T)> {
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 2], sorted[sorted.len() / 2]))
}

/// Heads and widths of the table; longer cells go on in the next line.
const COLUMNS: [(&str, usize); 9] = [
    ("query", 8),
    ("engine", 10),
    ("outcome", 46),
    ("seconds", 7),
    ("pool peak", 9),
    ("process peak", 12),
    ("spilled", 9),
    ("files", 6),
    ("equal", 5),
];

/// The columns up to this one hold words, which stand left.
const LAST_OF_WORDS: usize = 2;

/// Prints records as they come.
pub(crate) struct Report {
    title: String,
    format: Format,
    explain: bool,
}

impl Report {
    /// A report of these queries.
    pub(crate) fn new(args: &Args, queries: &[Query]) -> Self {
        let limit = match args.memory() {
            Memory(Some(bytes)) => format!("{} pool of {}", args.pool, human_readable_size(bytes)),
            Memory(None) => "no memory limit".to_owned(),
        };
        let queries = match queries {
            [query] => query.name.clone(),
            queries => format!("{} queries", queries.len()),
        };
        let (scale, partitions) = (args.scale, args.partitions);
        Self {
            title: format!("TPC-H scale {scale}, {queries}, {limit}, {partitions} partitions"),
            format: args.format,
            explain: args.explain,
        }
    }

    /// Prints what comes before the first record.
    pub(crate) fn start(&self) -> Result<()> {
        if self.format == Format::Table {
            let mut out = stdout().lock();
            writeln!(out, "{}\n", self.title)?;
            write_row(&mut out, &COLUMNS.map(|(head, _)| head.to_owned()))?;
            write_row(&mut out, &COLUMNS.map(|(_, width)| "-".repeat(width)))?;
        }
        Ok(())
    }

    /// Prints what all engines did with a query.
    pub(crate) fn query(&self, records: &[Record]) -> Result<()> {
        let mut out = stdout().lock();
        for record in records {
            match self.format {
                Format::Table => write_row(&mut out, &record.cells())?,
                Format::Json => writeln!(out, "{}", record.to_json())?,
            }
        }
        let plans = records.iter().filter(|_| self.explain);
        for record in plans {
            let plan = record.outcomes.iter().find_map(|run| run.plan.as_deref());
            let plan = plan.unwrap_or("no plan\n");
            let text = format!("\n{} {}:\n{plan}", record.query, record.engine);
            match self.format {
                Format::Table => writeln!(out, "{text}")?,
                Format::Json => progress::note(&text),
            }
        }
        Ok(())
    }
}

fn write_row(out: &mut impl Write, cells: &[String; 9]) -> Result<()> {
    let wrapped: Vec<Vec<String>> = cells
        .iter()
        .zip(COLUMNS)
        .map(|(cell, (_, width))| wrap(cell, width))
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..height {
        let columns = wrapped.iter().zip(COLUMNS).enumerate();
        let parts = columns.map(|(index, (lines, (_, width)))| {
            let part = lines.get(line).map_or("", String::as_str);
            if index <= LAST_OF_WORDS {
                format!("{part:<width$}")
            } else {
                format!("{part:>width$}")
            }
        });
        let text = parts.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Breaks a text between words, or within words that are too long.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        while !rest.is_empty() {
            let last = lines.len() - 1;
            let used = lines[last].chars().count();
            let gap = usize::from(used > 0);
            if used + gap + rest.len() <= width {
                lines[last] += if gap > 0 { " " } else { "" };
                lines[last].extend(rest.drain(..));
            } else if used == 0 {
                lines[last].extend(rest.drain(..width));
            } else {
                lines.push(String::new());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64, error: Option<&str>) -> Outcome {
        Outcome {
            error: error.map(str::to_owned),
            rows: error.is_none().then_some(7),
            seconds: Some(seconds),
            ..Outcome::default()
        }
    }

    #[test]
    fn one_failed_run_of_several_fails_the_record() {
        let mut record = Record::new("q1", Engine::Grace);
        record.add(run(3.0, None), Some(true));
        record.add(run(1.0, None), Some(true));
        assert!(record.is_right());
        assert_eq!((record.rows(), record.seconds()), (Some(7), Some(2.0)));
        record.add(run(9.0, Some("Resources exhausted")), None);
        assert!(!record.is_right());
        assert_eq!((record.rows(), record.seconds()), (None, Some(3.0)));
        assert_eq!(record.to_json()["ok"], Value::Bool(false));
        assert_eq!(record.to_json()["answer_equal"], Value::Null);
    }

    #[test]
    fn long_words_are_broken() {
        assert_eq!(wrap("ab cd efghij", 5), ["ab cd", "efghi", "j"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
