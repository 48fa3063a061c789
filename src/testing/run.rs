//! Runs a case through the operator and looks at everything that it promises.
//!
//! Job: surroundings made by hand ([`Environment`]: a pool, a directory for spill files that nobody
//! else uses, a batch size), the run itself, and the checks: rows as a multiset, schema exactly,
//! batches within the batch size, counters that tell the truth, and nothing left behind once the
//! stream is gone. Invariant: what fails names the case, so that it can be run again.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::config::SessionConfig;
use datafusion_execution::memory_pool::{
    GreedyMemoryPool, MemoryLimit, MemoryPool, UnboundedMemoryPool,
};
use datafusion_execution::runtime_env::RuntimeEnvBuilder;
use datafusion_execution::{
    DiskManager, RecordBatchStream, SendableRecordBatchStream, TaskContext,
};
use futures::StreamExt;

use super::cases::{CASE_ENV, Case};
use super::data::Table;
use super::faults::{FaultyFiles, FaultyInput};
use super::oracle::{Question, Rows};
use crate::{
    GraceHashJoin, GraceHashJoinBuilder, GraceHashJoinConfig, GraceHashJoinStream, JoinStats,
};

/// How long memory and files may take to go after the stream was dropped: a blocking write ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a join may reserve whatever the pool holds, besides the input batch in hand and its hashes
/// and numbers: the floor.
const FLOOR: u64 = 384 << 10;

/// How long a case may run before it counts as hanging.
const WATCHDOG: Duration = Duration::from_mins(1);

/// What went wrong, and in which case.
#[derive(Debug)]
pub struct Failure {
    case: String,
    reason: String,
}

impl Failure {
    /// A failure of the case of this name.
    pub fn new(case: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self {
            case: case.to_string(),
            reason: reason.to_string(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, reason } = self;
        write!(
            f,
            "{case}: {reason}\n  again: {CASE_ENV}='{case}' cargo test --test it"
        )
    }
}

impl std::error::Error for Failure {}

/// Whether a run writes to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spills {
    /// It proves nothing unless it does.
    Must,
    /// It opens no file.
    MustNot,
    /// Either.
    May,
}

/// What a run finds around itself.
#[derive(Debug)]
pub struct Environment {
    /// The task's memory.
    pub pool: Arc<dyn MemoryPool>,
    /// Where spill files end up.
    pub disk: Arc<DiskManager>,
    /// What the operator is given.
    pub context: Arc<TaskContext>,
}

impl Environment {
    /// A pool, a directory of its own, and a batch size.
    ///
    /// # Errors
    /// If the runtime cannot be made.
    pub fn new(pool: Arc<dyn MemoryPool>, batch_size: usize) -> Result<Self> {
        Self::build(pool, batch_size, None)
    }

    /// As [`Self::new`], with files that go wrong.
    ///
    /// # Errors
    /// If the runtime cannot be made.
    pub fn with_files(
        pool: Arc<dyn MemoryPool>,
        batch_size: usize,
        files: &Arc<FaultyFiles>,
    ) -> Result<Self> {
        Self::build(pool, batch_size, Some(files))
    }

    fn build(
        pool: Arc<dyn MemoryPool>,
        batch_size: usize,
        files: Option<&Arc<FaultyFiles>>,
    ) -> Result<Self> {
        let mut disk = DiskManager::builder();
        if let Some(files) = files {
            disk = disk.with_temp_file_factory(Arc::<FaultyFiles>::clone(files));
        }
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool))
            .with_disk_manager_builder(disk)
            .build_arc()?;
        let disk = files.map_or_else(|| Arc::clone(&runtime.disk_manager), |files| files.disk());
        let config = SessionConfig::new().with_batch_size(batch_size);
        let context = TaskContext::default()
            .with_session_config(config)
            .with_runtime(runtime);
        Ok(Self {
            pool,
            disk,
            context: Arc::new(context),
        })
    }

    /// Memory without end.
    ///
    /// # Errors
    /// If the runtime cannot be made.
    pub fn unlimited(batch_size: usize) -> Result<Self> {
        Self::new(Arc::new(UnboundedMemoryPool::default()), batch_size)
    }

    /// A greedy pool of so many bytes.
    ///
    /// # Errors
    /// If the runtime cannot be made.
    pub fn greedy(bytes: usize, batch_size: usize) -> Result<Self> {
        Self::new(Arc::new(GreedyMemoryPool::new(bytes)), batch_size)
    }

    /// Waits until no memory is reserved and no file is left.
    ///
    /// # Errors
    /// What is still there when patience ends.
    pub async fn becomes_clean(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let left = self.leftovers();
            match left {
                None => return Ok(()),
                Some(left) if start.elapsed() > PATIENCE => return Err(left),
                Some(_) => {
                    tokio::task::yield_now().await;
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn leftovers(&self) -> Option<String> {
        let progress = self.disk.spilling_progress();
        let files = self
            .disk
            .temp_dir_paths()
            .into_iter()
            .flat_map(std::fs::read_dir)
            .flatten();
        let files = files.count();
        let bytes = self.pool.reserved();
        let is_clean = bytes == 0
            && files == 0
            && progress.active_files_count == 0
            && progress.current_bytes == 0;
        (!is_clean).then(|| {
            format!(
                "left behind: {bytes} bytes reserved, {files} files in the directory, {} files \
                 counted, {} bytes on disk",
                progress.active_files_count, progress.current_bytes
            )
        })
    }
}

/// A join with its inputs: what is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The join.
    pub join: Arc<GraceHashJoin>,
    /// Its build input.
    pub build: Table,
    /// Its probe input.
    pub probe: Table,
}

impl Setting {
    /// Starts a run on the inputs as they are.
    ///
    /// # Errors
    /// If the operator refuses to start.
    pub fn start(&self, environment: &Environment) -> Result<GraceHashJoinStream> {
        let input = |table: &Table| -> SendableRecordBatchStream {
            Box::pin(FaultyInput::new(
                Arc::clone(&table.schema),
                table.batches.clone(),
            ))
        };
        self.start_with(environment, input(&self.build), input(&self.probe))
    }

    /// Starts a run on other inputs of the same schemas.
    ///
    /// # Errors
    /// If the operator refuses to start.
    pub fn start_with(
        &self,
        environment: &Environment,
        build: SendableRecordBatchStream,
        probe: SendableRecordBatchStream,
    ) -> Result<GraceHashJoinStream> {
        self.join
            .execute(build, probe, &environment.context, 0, None)
    }
}

/// What a run gave.
#[derive(Debug)]
pub struct Outcome {
    /// The stream's schema.
    pub schema: SchemaRef,
    /// The batches before the end or the error.
    pub batches: Vec<RecordBatch>,
    /// How it ended.
    pub end: Result<()>,
    /// The counters at the end.
    pub stats: JoinStats,
}

/// Polls a stream to its end and drops it. After an error there must be nothing more.
///
/// # Errors
/// If something follows an error.
pub async fn collect(mut stream: GraceHashJoinStream) -> Result<Outcome, String> {
    let mut batches = Vec::new();
    let mut end = Ok(());
    while let Some(item) = stream.next().await {
        match item {
            Ok(batch) => batches.push(batch),
            Err(error) => {
                end = Err(error);
                break;
            }
        }
    }
    if let Err(error) = &end
        && let Some(more) = stream.next().await
    {
        let more = more.map(|batch| batch.num_rows());
        return Err(format!("after the error {error} came {more:?}"));
    }
    Ok(Outcome {
        schema: stream.schema(),
        batches,
        end,
        stats: stream.stats(),
    })
}

impl Case {
    /// The join that this case asks for, with its inputs.
    ///
    /// # Errors
    /// If the operator refuses the join.
    pub fn setting(&self) -> Result<Setting> {
        let config = GraceHashJoinConfig::builder()
            .with_fan_out(self.pressure.fan_out())
            .with_spill(self.pressure.policy())
            .build()?;
        self.setting_with(|join| join.with_config(config))
    }

    /// As [`Self::setting`], with another configuration, projection or limit.
    ///
    /// # Errors
    /// If the operator refuses the join.
    pub fn setting_with(
        &self,
        change: impl FnOnce(GraceHashJoinBuilder) -> GraceHashJoinBuilder,
    ) -> Result<Setting> {
        let (build, probe) = self.tables()?;
        let schemas = (Arc::clone(&build.schema), Arc::clone(&probe.schema));
        let join = GraceHashJoin::builder(schemas.0, schemas.1)
            .with_on((0..build.v).map(|key| (key, key)).collect())
            .with_join_type(self.join_type)
            .with_null_equality(self.null_equality)
            .with_null_aware(self.null_aware)
            .with_filter(self.filter.filter(build.v, probe.v));
        Ok(Setting {
            join: change(join).build()?,
            build,
            probe,
        })
    }

    /// What the oracle says.
    ///
    /// # Errors
    /// If the filter fails for a pair of rows.
    pub fn expected(&self) -> Result<Rows, Failure> {
        self.expected_columns(None)
            .map_err(|error| Failure::new(self, error))
    }

    /// What the oracle says of some of the columns.
    ///
    /// # Errors
    /// If the filter fails for a pair of rows.
    pub fn expected_columns(&self, projection: Option<&[usize]>) -> Result<Rows> {
        let (build, probe) = self.tables()?;
        let on: Vec<_> = (0..build.v).map(|key| (key, key)).collect();
        self.expected_of(&build, &probe, &on, projection)
    }

    /// What the oracle says of other inputs.
    ///
    /// # Errors
    /// If the filter fails for a pair of rows.
    pub fn expected_of(
        &self,
        build: &Table,
        probe: &Table,
        on: &[(usize, usize)],
        projection: Option<&[usize]>,
    ) -> Result<Rows> {
        Question {
            build_schema: &build.schema,
            probe_schema: &probe.schema,
            build: &build.batches,
            probe: &probe.batches,
            on,
            join_type: self.join_type,
            null_equality: self.null_equality,
            null_aware: self.null_aware,
            filter: self.filter.filter(build.v, probe.v).as_deref(),
            projection,
        }
        .answer()
    }

    /// The surroundings that this case asks for.
    ///
    /// # Errors
    /// If the runtime cannot be made.
    pub fn environment(&self) -> Result<Environment> {
        match self.pressure.pool_bytes() {
            Some(bytes) => Environment::greedy(bytes, self.batch_size),
            None => Environment::unlimited(self.batch_size),
        }
    }
}

/// Runs a case and checks it against the expected rows, under a watchdog.
///
/// # Errors
/// The first promise that the operator broke.
pub fn check(case: &Case, expected: &Rows) -> Result<Outcome, Failure> {
    let (case, expected) = (*case, expected.clone());
    let run = move || async move { check_here(&case, &expected).await };
    within(WATCHDOG, run)
        .and_then(|outcome| outcome)
        .map_err(|reason| Failure::new(case, reason))
}

async fn check_here(case: &Case, expected: &Rows) -> Result<Outcome, String> {
    let told = |error: DataFusionError| error.to_string();
    let environment = case.environment().map_err(told)?;
    let setting = case.setting().map_err(told)?;
    setting
        .check(&environment, expected, case.expects_spill())
        .await
}

impl Setting {
    /// Runs to the end and checks every promise.
    ///
    /// # Errors
    /// The first that was broken.
    pub async fn check(
        &self,
        around: &Environment,
        expected: &Rows,
        spills: Spills,
    ) -> Result<Outcome, String> {
        let stream = self.start(around).map_err(|error| error.to_string())?;
        let outcome = collect(stream).await?;
        if let Err(error) = &outcome.end {
            return Err(format!("ended with {error}"));
        }
        outcome.keeps_its_word(expected, around)?;
        outcome.spilled_as(spills)?;
        around.becomes_clean().await?;
        Ok(outcome)
    }

    /// Runs a stream of this join under faults: right to the end, or one error and nothing more;
    /// and nothing left behind either way. Says whether it was right.
    ///
    /// # Errors
    /// If neither is so.
    pub async fn survives(
        stream: Result<GraceHashJoinStream>,
        around: &Environment,
        expected: &Rows,
    ) -> Result<bool, String> {
        let outcome = match stream {
            Ok(stream) => collect(stream).await?,
            Err(_) => return around.becomes_clean().await.map(|()| false),
        };
        if outcome.end.is_ok() {
            outcome.keeps_its_word(expected, around)?;
        }
        let is_right = outcome.end.is_ok();
        drop(outcome);
        around.becomes_clean().await?;
        Ok(is_right)
    }
}

impl Outcome {
    /// Whether rows, schema, batch sizes and counters are right, in a pool that is large enough.
    ///
    /// # Errors
    /// The first that is not.
    pub fn keeps_its_word(&self, expected: &Rows, around: &Environment) -> Result<(), String> {
        self.is_right(expected, around)?;
        let MemoryLimit::Finite(limit) = around.pool.memory_limit() else {
            return Ok(());
        };
        let in_hand = self.stats.largest_batch_bytes;
        // The batch in hand exists already, so it is counted whatever the pool says.
        let most = (limit as u64).max(FLOOR + in_hand / 8) + in_hand;
        let peak = self.stats.peak_bytes;
        if peak > most {
            return Err(format!(
                "{peak} bytes were reserved of {most}, in a pool of {limit}"
            ));
        }
        Ok(())
    }

    /// Whether rows, schema, batch sizes and the count of rows are right.
    ///
    /// # Errors
    /// The first that is not.
    pub fn is_right(&self, expected: &Rows, around: &Environment) -> Result<(), String> {
        let most = around.context.session_config().batch_size();
        for batch in &self.batches {
            if batch.num_rows() > most {
                let rows = batch.num_rows();
                return Err(format!("a batch of {rows} rows where {most} are allowed"));
            }
            if batch.schema() != self.schema {
                return Err(format!("schema {} in {}", batch.schema(), self.schema));
            }
        }
        let rows = Rows::of(&self.batches).map_err(|error| error.to_string())?;
        if let Some(difference) = expected.difference(&rows) {
            return Err(difference);
        }
        if self.stats.output_rows != rows.len() as u64 {
            let counted = self.stats.output_rows;
            return Err(format!("{} rows came, {counted} were counted", rows.len()));
        }
        Ok(())
    }

    /// Whether it wrote to disk as it was expected to.
    ///
    /// # Errors
    /// If not.
    pub fn spilled_as(&self, expected: Spills) -> Result<(), String> {
        let stats = &self.stats;
        let wrote = stats.spill_count > 0 && stats.spilled_rows > 0 && stats.spilled_bytes > 0;
        let idle = stats.spill_count == 0 && stats.spilled_rows == 0 && stats.spilled_bytes == 0;
        let is_right = match expected {
            Spills::Must => wrote,
            Spills::MustNot => idle,
            Spills::May => wrote || idle,
        };
        if is_right {
            Ok(())
        } else {
            Err(format!(
                "spilling {expected:?} happen, but the counters say {stats:?}"
            ))
        }
    }
}

/// Runs something in a runtime of one thread, and gives up on it after a while.
///
/// # Errors
/// If it takes too long or panics.
pub fn within<T, F>(limit: Duration, run: impl FnOnce() -> F + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    // As many as tokio has by default.
    within_blocking_threads(512, limit, run)
}

/// The same in a runtime with so many threads for blocking tasks.
///
/// # Errors
/// If it takes too long or panics.
pub fn within_blocking_threads<T, F>(
    threads: usize,
    limit: Duration,
    run: impl FnOnce() -> F + Send + 'static,
) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(threads)
            .enable_all()
            .build();
        let result = match runtime {
            Ok(runtime) => Ok(runtime.block_on(run())),
            Err(error) => Err(error.to_string()),
        };
        // The receiver is gone if it gave up; then nobody wants to know.
        let _ = sender.send(result);
    });
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("nothing came within {limit:?}")),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = worker.join().err();
            let text = panic.as_ref().and_then(|p| {
                let owned = p.downcast_ref::<String>().map(String::as_str);
                owned.or_else(|| p.downcast_ref::<&str>().copied())
            });
            Err(format!("it panicked: {}", text.unwrap_or("without words")))
        }
    }
}
