//! Answers as text, so that they can be compared, as sequences or as multisets: the queries here have
//! no floats.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::prelude::{SessionConfig, SessionContext};
use tokio::time::timeout;

use crate::Result;
use crate::joins::{Counts, Joins};
use crate::queries::Query;
use crate::tpch;

/// Longer than anything here takes on a busy machine.
pub const TOO_LONG: Duration = Duration::from_secs(300);

/// The rows as they came, below the names and types of their columns.
///
/// # Errors
/// If a value cannot be shown.
pub fn rows(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<String>> {
    let columns = schema.fields().iter();
    let columns = columns.map(|f| format!("{}: {}", f.name(), f.data_type()));
    let mut rows = vec![columns.collect::<Vec<_>>().join(" | ")];
    let options = FormatOptions::default().with_null("NULL");
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|c| ArrayFormatter::try_new(c.as_ref(), &options));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let values: Vec<_> = columns.iter().map(|c| c.value(row).to_string()).collect();
            rows.push(values.join(" | "));
        }
    }
    Ok(rows)
}

/// The rows of a query's answer as they come, below its columns.
///
/// # Errors
/// The query's, or that it took too long.
pub async fn sequence(context: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let frame = context.sql(sql).await?;
    let schema = frame.schema().as_arrow().clone();
    let batches = timeout(TOO_LONG, frame.collect()).await??;
    rows(&schema, &batches)
}

/// The rows of a query's answer, sorted, below its columns.
///
/// # Errors
/// The query's, or that it took too long.
pub async fn multiset(context: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let rows = sequence(context, sql).await?;
    Ok(sorted(rows))
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows[1..].sort_unstable();
    rows
}

/// DataFusion alone, in one process and without a limit: it says what the right answers are.
pub struct OneProcess {
    context: SessionContext,
    /// By the query's text, in the order of the rows.
    known: HashMap<String, Vec<String>>,
}

impl OneProcess {
    /// A session that knows the tables in `directory`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn new(directory: &Path) -> Result<Self> {
        let config = SessionConfig::new().with_target_partitions(2);
        let context = SessionContext::new_with_config(config);
        tpch::register(&context, directory).await?;
        Ok(Self {
            context,
            known: HashMap::new(),
        })
    }

    /// The right answer, its rows in order.
    ///
    /// # Errors
    /// The query's.
    pub async fn sequence(&mut self, sql: &str) -> Result<Vec<String>> {
        if let Some(rows) = self.known.get(sql) {
            return Ok(rows.clone());
        }
        let rows = sequence(&self.context, sql).await?;
        self.known.insert(sql.to_owned(), rows.clone());
        Ok(rows)
    }

    /// The right answer, its rows sorted.
    ///
    /// # Errors
    /// The query's.
    pub async fn multiset(&mut self, sql: &str) -> Result<Vec<String>> {
        Ok(sorted(self.sequence(sql).await?))
    }
}

/// Runs queries on an engine whose tasks show their joins to `joins`, and compares each answer with
/// that of one process: as sequences if the query says an order. Returns what the joins have done.
///
/// # Errors
/// All that failed and all that answered something else, by their texts.
pub async fn compare(
    context: &SessionContext,
    joins: &Joins,
    right: &mut OneProcess,
    queries: &[Query],
    what: &str,
) -> Result<Counts> {
    let mut total = Counts::default();
    let mut wrong = Vec::new();
    for Query { sql, is_ordered } in queries {
        let expected = right.sequence(sql).await?;
        if expected.len() < 2 {
            return Err(format!("no row to compare: {sql}").into());
        }
        let difference = match sequence(context, sql).await {
            Err(error) => Some(error.to_string()),
            Ok(found) if *is_ordered => difference(&found, &expected),
            Ok(found) => difference(&sorted(found), &sorted(expected)),
        };
        let counts = joins.take();
        println!("{what}: {sql}: {counts:?}");
        wrong.extend(difference.map(|d| format!("{what}: {sql}\n    {d}")));
        total += counts;
    }
    match wrong.is_empty() {
        true => Ok(total),
        false => Err(wrong.join("\n").into()),
    }
}

/// Where two answers part, if they do.
fn difference(found: &[String], expected: &[String]) -> Option<String> {
    let is_same = found.iter().zip(expected).take_while(|(f, e)| f == e);
    let at = is_same.count();
    (found != expected).then(|| {
        format!(
            "{} rows, {} expected; at {at} {:?}, {:?} expected",
            found.len() - 1,
            expected.len() - 1,
            found.get(at),
            expected.get(at)
        )
    })
}
