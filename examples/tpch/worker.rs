//! A worker: runs one query with one engine and prints what happened as one line of JSON.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write, stdin, stdout};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow_ipc::writer::StreamWriter;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::args::Args;
use crate::engine::{Engine, Session};
use crate::scans::Scans;
use crate::supervisor;
use crate::{Error, Result};

/// What running a query once came to. Numbers are `None` where nobody knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Why it failed, if it did.
    pub(crate) error: Option<String>,
    /// Rows of the answer.
    pub(crate) rows: Option<u64>,
    /// From the text of the query to its last row.
    pub(crate) seconds: Option<f64>,
    /// The most that was reserved in the pool at a time.
    pub(crate) pool_peak: Option<u64>,
    /// The most that the process occupied at a time.
    pub(crate) process_peak: Option<u64>,
    /// Bytes written to disk by the joins of this crate for `grace`, by all operators otherwise.
    pub(crate) spilled_bytes: Option<u64>,
    /// Files written by the same.
    pub(crate) spill_files: Option<u64>,
    /// Bytes written to disk by all operators.
    pub(crate) plan_spilled_bytes: Option<u64>,
    /// How many joins of this crate the plan has.
    pub(crate) grace_nodes: Option<u64>,
    /// What its scans read and skipped.
    pub(crate) scans: Option<Scans>,
    /// The plan with its metrics.
    pub(crate) plan: Option<String>,
}

impl Outcome {
    /// As a worker prints it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "error": self.error,
            "rows": self.rows,
            "seconds": self.seconds,
            "pool_peak": self.pool_peak,
            "process_peak": self.process_peak,
            "spilled_bytes": self.spilled_bytes,
            "spill_files": self.spill_files,
            "plan_spilled_bytes": self.plan_spilled_bytes,
            "grace_nodes": self.grace_nodes,
            "scans": self.scans.map(Scans::to_json),
            "plan": self.plan,
        })
    }

    /// As the supervisor reads it.
    pub(crate) fn from_json(json: &Value) -> Self {
        let text = |key: &str| json[key].as_str().map(str::to_owned);
        Self {
            error: text("error"),
            rows: json["rows"].as_u64(),
            seconds: json["seconds"].as_f64(),
            pool_peak: json["pool_peak"].as_u64(),
            process_peak: json["process_peak"].as_u64(),
            spilled_bytes: json["spilled_bytes"].as_u64(),
            spill_files: json["spill_files"].as_u64(),
            plan_spilled_bytes: json["plan_spilled_bytes"].as_u64(),
            grace_nodes: json["grace_nodes"].as_u64(),
            scans: Scans::from_json(&json["scans"]),
            plan: text("plan"),
        }
    }
}

/// The main function of a worker.
pub(crate) async fn run(engine: Engine, args: &Args) -> Result<()> {
    let directory = args.worker.directory.as_deref();
    let directory = directory.ok_or("a worker needs --worker-directory")?;
    let answer = supervisor::answer_in(directory);
    end_with_parent(directory);
    let queries = args.query.load(args.scale)?;
    let query = queries.get(args.worker.query).ok_or("no such query")?;
    let outcome = match Session::start(engine, args).await {
        Ok(session) => measure(engine, &session, &query.sql, &answer).await,
        Err(error) => Outcome {
            error: Some(describe(&error)),
            ..Outcome::default()
        },
    };
    writeln!(stdout(), "{}", outcome.to_json())?;
    Ok(())
}

/// Ends this process, and removes the files of the run, when the parent is gone without having
/// done so: standard input ends then.
fn end_with_parent(directory: &Path) {
    let run = directory.parent().map(Path::to_owned);
    thread::spawn(move || {
        // Nobody writes there, so this returns when the pipe is closed, however that is reported.
        let _ = stdin().read_to_end(&mut vec![]);
        if let Some(run) = run.filter(|run| supervisor::is_run_directory(run)) {
            let _ = fs::remove_dir_all(run);
        }
        std::process::exit(1);
    });
}

async fn measure(engine: Engine, session: &Session, sql: &str, answer: &Path) -> Outcome {
    let start = Instant::now();
    let mut plan = None;
    let result = answer_query(session, sql, answer, &mut plan).await;
    let seconds = start.elapsed().as_secs_f64();
    let (rows, error) = match result {
        Ok(rows) => (Some(rows), None),
        Err(error) => (None, Some(describe(&error))),
    };
    let mut outcome = Outcome {
        error,
        rows,
        seconds: Some(seconds),
        pool_peak: Some(session.pool.max_reserved() as u64),
        process_peak: process_peak("self"),
        ..Outcome::default()
    };
    if let Some(plan) = plan {
        let (mut all, mut grace) = (Spills::default(), Spills::default());
        add_spills(plan.as_ref(), &mut all, &mut grace);
        let own = if engine == Engine::Grace {
            &grace
        } else {
            &all
        };
        outcome.spilled_bytes = Some(own.bytes);
        outcome.spill_files = Some(own.files);
        outcome.plan_spilled_bytes = Some(all.bytes);
        outcome.grace_nodes = Some(grace.nodes);
        outcome.scans = Some(Scans::of(plan.as_ref()));
        let display = DisplayableExecutionPlan::with_metrics(plan.as_ref());
        outcome.plan = Some(display.indent(true).to_string());
    }
    outcome
}

/// Writes the answer to a file and gives its number of rows. The plan is left behind even if its
/// execution fails.
async fn answer_query(
    session: &Session,
    sql: &str,
    answer: &Path,
    plan: &mut Option<Arc<dyn ExecutionPlan>>,
) -> Result<u64> {
    let frame = session.context.sql(sql).await?;
    let task = Arc::new(frame.task_ctx());
    let plan = plan.insert(frame.create_physical_plan().await?);
    let mut rows = execute_stream(Arc::clone(plan), task)?;
    let schema = without_views(&rows.schema());
    let file = BufWriter::new(File::create(answer)?);
    let mut writer = StreamWriter::try_new(file, &schema)?;
    let mut count = 0;
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        count += batch.num_rows() as u64;
        writer.write(&cast_to(&batch, &schema)?)?;
    }
    writer.finish()?;
    Ok(count)
}

/// A schema without view types: a view array is written with all the buffers it shares, however
/// few of its bytes are seen.
fn without_views(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let plain = match field.data_type() {
            DataType::Utf8View => DataType::Utf8,
            DataType::BinaryView => DataType::Binary,
            other => other.clone(),
        };
        field.as_ref().clone().with_data_type(plain)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn cast_to(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast(column, field.data_type()));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Sums over nodes of a plan.
#[derive(Default)]
struct Spills {
    nodes: u64,
    bytes: u64,
    files: u64,
}

fn add_spills(plan: &dyn ExecutionPlan, all: &mut Spills, grace: &mut Spills) {
    let metrics = plan.metrics().unwrap_or_default();
    let bytes = metrics.spilled_bytes().unwrap_or(0) as u64;
    let files = metrics.spill_count().unwrap_or(0) as u64;
    let add = |sums: &mut Spills| {
        sums.nodes += 1;
        sums.bytes += bytes;
        sums.files += files;
    };
    add(all);
    if plan.name() == "GraceHashJoinExec" {
        add(grace);
    }
    for child in plan.children() {
        add_spills(child.as_ref(), all, grace);
    }
}

/// The most memory that a process occupied at a time, where the system says so (Linux).
pub(crate) fn process_peak(process: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The message of an error without a backtrace, its root cause in the first line: DataFusion would
/// begin with what it was doing.
fn describe(error: &Error) -> String {
    let Some(error) = error.downcast_ref::<DataFusionError>() else {
        return error.to_string();
    };
    let whole = error.strip_backtrace();
    let root = error.find_root().strip_backtrace();
    if whole.starts_with(&root) {
        whole
    } else {
        format!("{root}\n{whole}")
    }
}
