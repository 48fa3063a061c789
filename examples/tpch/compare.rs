//! `--compare`: the grace hash join against the hash join where both have all the memory they want.

use std::io::{Write, stdout};

use crate::Result;
use crate::engine::Engine;
use crate::report::Record;
use crate::scans::Scans;

/// One query with both joins.
struct Row {
    query: String,
    hash: f64,
    grace: f64,
    nodes: u64,
    scans: [Option<Scans>; 2],
}

/// The queries so far.
#[derive(Default)]
pub(crate) struct Comparison {
    rows: Vec<Row>,
    failed: Vec<String>,
}

impl Comparison {
    /// Takes in what the engines did with a query.
    pub(crate) fn add(&mut self, records: &[Record]) {
        let of = |engine| records.iter().find(|r| r.engine == engine);
        let (Some(hash), Some(grace)) = (of(Engine::Reference), of(Engine::Grace)) else {
            return;
        };
        match (hash.seconds(), grace.seconds()) {
            (Some(hash_seconds), Some(grace_seconds)) if hash.is_right() && grace.is_right() => {
                self.rows.push(Row {
                    query: grace.query.clone(),
                    hash: hash_seconds,
                    grace: grace_seconds,
                    nodes: grace.grace_nodes(),
                    scans: [hash.scans(), grace.scans()],
                });
            }
            _ => self.failed.push(grace.query.clone()),
        }
    }

    /// Prints the table.
    pub(crate) fn print(&self) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(
            out,
            "\n{:<8} {:>6} {:>9} {:>9} {:>6}  {:>21}  {:>13}  {:>19}  {:>17}",
            "query",
            "joins",
            "hash s",
            "grace s",
            "ratio",
            "rows out of scans",
            "groups skip.",
            "page rows skipped",
            "rows filtered"
        )?;
        for row in &self.rows {
            let pair = |number: fn(&Scans) -> u64| {
                let shown = row
                    .scans
                    .map(|s| s.map_or_else(|| "-".to_owned(), |s| number(&s).to_string()));
                shown.join(" ")
            };
            writeln!(
                out,
                "{:<8} {:>6} {:>9.3} {:>9.3} {:>6.3}  {:>21}  {:>13}  {:>19}  {:>17}",
                row.query,
                row.nodes,
                row.hash,
                row.grace,
                row.grace / row.hash,
                pair(|s| s.rows),
                pair(|s| s.groups_skipped),
                pair(|s| s.page_rows_skipped),
                pair(|s| s.rows_filtered),
            )?;
        }
        let logs: f64 = self.rows.iter().map(|r| (r.grace / r.hash).ln()).sum();
        #[expect(clippy::cast_precision_loss, reason = "22 queries")]
        let mean = (logs / self.rows.len().max(1) as f64).exp();
        let ratios = self.rows.iter().map(|r| r.grace / r.hash);
        let worst = ratios.fold(0.0, f64::max);
        writeln!(out, "\ngeometric mean {mean:.3}, worst {worst:.3}")?;
        if !self.failed.is_empty() {
            writeln!(out, "failed: {}", self.failed.join(", "))?;
        }
        Ok(())
    }
}
