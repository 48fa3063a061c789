//! The large join: two Parquet files of a key and a text of 24 characters, each key once in both.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryPool, PeakRecordingPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use grace_hash_join::{GraceHashJoinOptions, physical_optimizer_rules};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::args::Args;
use crate::grid::{Engine, Measured, spills};
use crate::{Error, Result};

/// Every text of both sides is looked at, so that no engine may leave it where it is.
const QUERY: &str = "SELECT count(*) AS pairs, max(a.payload) AS a, max(b.payload) AS b \
                     FROM a JOIN b ON a.key = b.key";

/// Primes that are no factor of the numbers of rows in use: each gives an order of all keys.
const STRIDES: [(&str, u64); 2] = [("a", 7_368_787), ("b", 5_915_587)];

const BATCH_ROWS: u64 = 65_536;

const ROW_GROUP_ROWS: usize = 128 << 10;

fn file(args: &Args, table: &str) -> PathBuf {
    args.data
        .join(format!("{table}-{}.parquet", args.large_rows))
}

/// Makes the files unless they are there.
pub(crate) fn prepare(args: &Args) -> Result<()> {
    fs::create_dir_all(&args.data)?;
    for (table, stride) in STRIDES {
        let path = file(args, table);
        if path.is_file() {
            continue;
        }
        let partial = path.with_extension("partial");
        write(&partial, args.large_rows as u64, stride)?;
        fs::rename(partial, path)?;
    }
    Ok(())
}

fn write(path: &std::path::Path, rows: u64, stride: u64) -> Result<()> {
    let batch = |from: u64| {
        let keys = (from..rows.min(from + BATCH_ROWS)).map(|row| row * stride % rows);
        let keys: Vec<u64> = keys.collect();
        // Digits that do not compress to nothing: the key, turned.
        let text = |key: &u64| format!("{:024}", u128::from(*key) * 0x9e37_79b9_7f4a_7c15);
        let columns: [(&str, ArrayRef); 2] = [
            (
                "key",
                Arc::new(Int64Array::from_iter_values(
                    keys.iter().map(|key| key.cast_signed()),
                )),
            ),
            (
                "payload",
                Arc::new(StringArray::from_iter_values(keys.iter().map(text))),
            ),
        ];
        RecordBatch::try_from_iter(columns)
    };
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let schema = batch(rows)?.schema();
    let mut writer = ArrowWriter::try_new(File::create(path)?, schema, Some(properties))?;
    let mut from = 0;
    while from < rows {
        writer.write(&batch(from)?)?;
        from += BATCH_ROWS;
    }
    writer.close()?;
    Ok(())
}

/// Runs the join with an engine, in a fair pool of so many bytes or without a limit.
pub(crate) async fn run(engine: Engine, limit: Option<usize>, args: &Args) -> Result<Measured> {
    let inner: Arc<dyn MemoryPool> = match limit {
        None => Arc::new(UnboundedMemoryPool::default()),
        Some(bytes) => Arc::new(FairSpillPool::new(bytes)),
    };
    let pool = Arc::new(PeakRecordingPool::new(inner));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::clone(&pool) as Arc<dyn MemoryPool>)
        .build_arc()?;
    let context = context(engine, runtime, args).await?;
    let start = Instant::now();
    let frame = context.sql(QUERY).await?;
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    check_plan(engine, plan.as_ref())?;
    let answer = collect(Arc::clone(&plan), task).await?;
    let seconds = start.elapsed().as_secs_f64();
    let pairs = answer.first().and_then(|batch| {
        let pairs = batch.column(0).as_any().downcast_ref::<Int64Array>()?;
        usize::try_from(pairs.value(0)).ok()
    });
    if pairs != Some(args.large_rows) {
        return Err(format!("{pairs:?} pairs came out").into());
    }
    let (spilled_bytes, files) = spills(plan.as_ref());
    Ok(Measured {
        seconds,
        rows: args.large_rows,
        pool_peak: pool.max_reserved(),
        spilled_bytes,
        files,
    })
}

async fn context(engine: Engine, runtime: Arc<RuntimeEnv>, args: &Args) -> Result<SessionContext> {
    let config = SessionConfig::new()
        .with_target_partitions(args.partitions)
        .with_option_extension(GraceHashJoinOptions::default());
    let mut state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features();
    if engine == Engine::Grace {
        state = state.with_physical_optimizer_rules(physical_optimizer_rules(&runtime));
    }
    let context = SessionContext::new_with_state(state.with_runtime_env(runtime).build());
    let mut settings = vec![
        // DataFusion 55.2 can stop for ever once its exchange spills, unless its files are closed
        // after each batch.
        ("datafusion.execution.max_spill_file_size_bytes", "1"),
        // Both sides are as large as each other, and none is small.
        (
            "datafusion.optimizer.hash_join_single_partition_threshold",
            "0",
        ),
        (
            "datafusion.optimizer.hash_join_single_partition_threshold_rows",
            "0",
        ),
    ];
    match engine {
        Engine::Grace => settings.extend([
            ("grace_hash_join.algorithm", "grace"),
            ("grace_hash_join.select", "always"),
        ]),
        Engine::SortMerge => settings.push(("datafusion.optimizer.prefer_hash_join", "false")),
        Engine::Hash => {}
    }
    for set in &args.set {
        settings.push(set.split_once('=').ok_or("--set needs KEY=VALUE")?);
    }
    for (key, value) in settings {
        context.sql(&format!("SET {key} = '{value}'")).await?;
    }
    for (table, _) in STRIDES {
        let path = file(args, table);
        let path = path.to_str().ok_or("the data's path is not UTF-8")?;
        let options = ParquetReadOptions::default();
        context.register_parquet(table, path, options).await?;
    }
    Ok(context)
}

/// A measurement of another engine's plan would be worse than none.
fn check_plan(engine: Engine, plan: &dyn ExecutionPlan) -> Result<()> {
    let wanted = match engine {
        Engine::Grace => "GraceHashJoinExec",
        Engine::Hash => "HashJoinExec",
        Engine::SortMerge => "SortMergeJoinExec",
    };
    match has_node(plan, wanted) {
        true => Ok(()),
        false => Err(Error::from(format!("the plan has no {wanted}"))),
    }
}

fn has_node(plan: &dyn ExecutionPlan, name: &str) -> bool {
    let mut children = plan.children().into_iter();
    plan.name() == name || children.any(|child| has_node(child.as_ref(), name))
}
