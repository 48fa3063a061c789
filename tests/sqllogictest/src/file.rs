//! One test file from its first to its last record.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::sync::Arc;

use datafusion_sqllogictest::{
    DFColumnType, TestContext, df_value_validator, setup_scratch_dir, value_normalizer,
};
use sqllogictest::{Location, Normalizer, Record, Runner, parse_file, strict_column_validator};

use crate::Result;
use crate::corpus;
use crate::engine::{Engine, Tally, is_explain};
use crate::known::{self, Promise};
use crate::runs::Run;

/// A record that did not go as written.
pub struct Failure {
    /// The name of the file that holds the record.
    pub file: String,
    /// 0 for the file as a whole.
    pub line: u32,
    what: String,
}

impl Failure {
    /// The file could not be gone through.
    pub fn whole(file: &str, what: &str) -> Self {
        Self {
            file: file.to_string(),
            line: 0,
            what: what.to_string(),
        }
    }
}

impl Failure {
    /// Whether the message has these words.
    pub fn says(&self, words: &str) -> bool {
        self.what.contains(words)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.file, self.line, self.what)
    }
}

/// Runs the records of a file, and gives those that fail.
pub async fn run(run: &'static Run, name: String, tally: Arc<Tally>) -> Result<Vec<Failure>> {
    let path = Path::new(&name);
    let context = TestContext::try_new_for_test_file(path).await;
    let context = context.ok_or("DataFusion's runner skips this file")?;
    setup_scratch_dir(path)?;
    let ctx = context.session_ctx();
    run.configure(ctx)?;
    let mut runner =
        Runner::new(|| async { Ok(Engine::new(ctx.clone(), run, Arc::clone(&tally))) });
    runner.add_label("Datafusion");
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    let mut failures = Vec::new();
    for record in parse_file::<DFColumnType>(corpus::path_of(&name))? {
        match &record {
            Record::Halt { .. } => break,
            Record::Query { sql, loc, .. } | Record::Statement { sql, loc, .. } => {
                let (file, line) = (file_of(loc), loc.line());
                let is_unpublished = corpus::UNPUBLISHED.contains(&(&file, line));
                if is_unpublished || is_explain(sql) && !run.has_the_expected_plans() {
                    continue;
                }
                tally.count_record();
                let validator = match known::promise(run, &file, line, sql) {
                    _ if is_explain(sql) => df_value_validator,
                    Promise::Order => df_value_validator,
                    Promise::Rows => same_rows,
                    Promise::Count => same_count,
                };
                runner.with_validator(validator);
            }
            _ => {}
        }
        if let Err(error) = runner.run_async(record).await {
            let location = error.location();
            failures.push(Failure {
                file: file_of(&location),
                line: location.line(),
                what: error.to_string(),
            });
        }
    }
    Ok(failures)
}

/// The name of the file that holds a record, which may be an included one.
fn file_of(location: &Location) -> String {
    let name = Path::new(location.file()).file_name();
    name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// As DataFusion's own validator, for results whose order is nobody's promise.
fn same_rows(normalizer: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    if df_value_validator(normalizer, actual, expected) {
        return true;
    }
    let mut actual = actual.to_vec();
    actual.sort_unstable_by_key(|row| value_normalizer(&row.join(" ")));
    let mut expected = expected.to_vec();
    expected.sort_unstable_by_key(value_normalizer);
    df_value_validator(normalizer, &actual, &expected)
}

/// Whether there are as many rows.
fn same_count(_: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    actual.len() == expected.len()
}
