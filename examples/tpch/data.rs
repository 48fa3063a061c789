//! The tables: generated once, as one Parquet file each, all or nothing.
//!
//! They are written into a directory beside the final one, which takes the final name when it is
//! complete. A directory of that name is therefore always whole; an interrupted generation removes
//! what it wrote, and what a killed one left is removed by the next.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use arrow::record_batch::RecordBatchReader;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::Result;
use crate::args::Args;
use crate::progress::{self, Progress};

/// The tables of TPC-H, the longest to generate first.
pub(crate) const TABLES: [&str; 8] = [
    "lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region",
];

/// Small enough that four partitions find row groups to share in every large table at scale 1.
const ROW_GROUP_ROWS: usize = 128 * 1024;

/// What the names of unfinished directories end in.
const PARTIAL: &str = ".partial";

/// The directory of the tables.
pub(crate) fn directory(args: &Args) -> PathBuf {
    args.data.clone().unwrap_or_else(|| {
        let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
        root.join("target/tpch").join(format!("sf{}", args.scale))
    })
}

/// The file of a table.
pub(crate) fn file(directory: &Path, table: &str) -> PathBuf {
    directory.join(format!("{table}.parquet"))
}

/// Generates the tables unless they are there. Dropping the future stops it and cleans up.
pub(crate) async fn prepare(args: &Args) -> Result<()> {
    let directory = directory(args);
    let missing: Vec<_> = TABLES
        .iter()
        .filter(|table| !file(&directory, table).is_file())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if missing.len() < TABLES.len() {
        return Err(format!(
            "{} has no {missing:?}: complete it, remove it, or choose another with --data",
            directory.display()
        )
        .into());
    }
    let scale = args.scale;
    let stop = StopOnDrop::default();
    let flag = Arc::clone(&stop.0);
    tokio::task::spawn_blocking(move || generate(&directory, scale, &flag)).await?
}

/// Tells the generator, which runs on threads of its own, that nobody waits for it any more.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn generate(directory: &Path, scale: f64, stop: &AtomicBool) -> Result<()> {
    let name = directory
        .file_name()
        .ok_or("--data needs a directory with a name")?;
    let prefix = format!(".{}.", name.to_string_lossy());
    let parent = match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent)?;
    remove_abandoned(parent, &prefix);
    let partial = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(&format!(".{}{PARTIAL}", std::process::id()))
        .tempdir_in(parent)?;
    let title = format!(
        "generating TPC-H at scale {scale} in {}",
        directory.display()
    );
    let bar = progress::bar(
        &title,
        TABLES.iter().map(|table| row_count(table, scale)).sum(),
    );
    generate_tables(partial.path(), scale, stop, &bar)?;
    publish(partial, directory)
}

/// Gives the finished directory its name, unless another process was faster.
fn publish(partial: TempDir, directory: &Path) -> Result<()> {
    readable_by_all(partial.path())?;
    match fs::rename(partial.path(), directory) {
        Ok(()) => {
            // It is no temporary directory any more.
            let _ = partial.keep();
            Ok(())
        }
        Err(_) if TABLES.iter().all(|table| file(directory, table).is_file()) => Ok(()),
        Err(error) => Err(format!("cannot make {}: {error}", directory.display()).into()),
    }
}

/// Temporary directories are made for their owner alone; the tables are no secret.
#[cfg(unix)]
fn readable_by_all(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(not(unix))]
fn readable_by_all(_: &Path) -> Result<()> {
    Ok(())
}

/// Removes what generators left that were killed. Their names end in their process id.
fn remove_abandoned(parent: &Path, prefix: &str) {
    let processes = Path::new("/proc");
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let owner = name
            .strip_prefix(prefix)
            .and_then(|name| name.strip_suffix(PARTIAL))
            .and_then(|name| name.rsplit('.').next());
        if let Some(owner) = owner
            && processes.join("self").exists()
            && !processes.join(owner).exists()
        {
            // If it cannot be removed it only takes room.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Writes all tables, as many at a time as there are cores.
fn generate_tables(directory: &Path, scale: f64, stop: &AtomicBool, bar: &Progress) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(table) = TABLES.get(next.fetch_add(1, Ordering::Relaxed)) {
            // One failure stops all.
            write_table(directory, table, scale, stop, bar)
                .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a generator panicked")?)
    })
}

fn write_table(
    directory: &Path,
    table: &str,
    scale: f64,
    stop: &AtomicBool,
    bar: &Progress,
) -> Result<()> {
    let batches = batches(table, scale);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let out = File::create(file(directory, table))?;
    let mut writer = ArrowWriter::try_new(out, batches.schema(), Some(properties))?;
    for batch in batches {
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        let batch = batch?;
        writer.write(&batch)?;
        bar.advance(batch.num_rows());
    }
    writer.close()?;
    Ok(())
}

fn batches(table: &str, scale: f64) -> Box<dyn RecordBatchReader> {
    match table {
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, 1, 1))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, 1, 1))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, 1, 1))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, 1, 1))),
        _ => Box::new(RegionArrow::new(RegionGenerator::new(scale, 1, 1))),
    }
}

/// How many rows a table will have; for `lineitem` a good guess, for `partsupp` exactly.
fn row_count(table: &str, scale: f64) -> u64 {
    let rows = match table {
        "lineitem" => 4 * OrderGenerator::calculate_row_count(scale, 1, 1),
        "orders" => OrderGenerator::calculate_row_count(scale, 1, 1),
        "partsupp" => 4 * PartGenerator::calculate_row_count(scale, 1, 1),
        "part" => PartGenerator::calculate_row_count(scale, 1, 1),
        "customer" => CustomerGenerator::calculate_row_count(scale, 1, 1),
        "supplier" => SupplierGenerator::calculate_row_count(scale, 1, 1),
        "nation" => 25,
        _ => 5,
    };
    u64::try_from(rows).unwrap_or(0)
}
