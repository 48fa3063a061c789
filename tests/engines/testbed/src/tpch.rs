//! TPC-H: tables as one Parquet file each, and the 22 queries of `examples/tpch`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow::record_batch::RecordBatchReader;
use datafusion::prelude::{ParquetReadOptions, SessionContext, col};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::Result;

const TABLES: [&str; 8] = [
    "lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region",
];

/// Several row groups in each large table at the smallest scale, so that tasks share them.
const ROW_GROUP_ROWS: usize = 8 * 1024;

/// The directory of the tables at this scale, which are generated if they are not there: `TPCH_DATA`
/// (then the scale is what is in it), or `target/tpch` of the crate, as `examples/tpch` has it.
///
/// # Errors
/// If files cannot be written.
pub fn tables(scale: f64) -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("TPCH_DATA") {
        return Ok(PathBuf::from(directory));
    }
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tpch");
    fs::create_dir_all(&parent)?;
    let directory = parent.canonicalize()?.join(format!("sf{scale}"));
    if directory.is_dir() {
        return Ok(directory);
    }
    // All or nothing, whoever else does the same.
    let partial = tempfile::Builder::new()
        .prefix(".engines")
        .tempdir_in(&parent)?;
    for table in TABLES {
        write(
            &partial.path().join(format!("{table}.parquet")),
            table,
            scale,
        )?;
    }
    if fs::rename(partial.path(), &directory).is_ok() {
        let _ = partial.keep();
    }
    if directory.is_dir() {
        return Ok(directory);
    }
    Err(format!("no tables in {}", directory.display()).into())
}

fn write(path: &Path, table: &str, scale: f64) -> Result<()> {
    let batches: Box<dyn RecordBatchReader> = match table {
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, 1, 1))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, 1, 1))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, 1, 1))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, 1, 1))),
        _ => Box::new(RegionArrow::new(RegionGenerator::new(scale, 1, 1))),
    };
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, batches.schema(), Some(properties))?;
    for batch in batches {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(())
}

/// Makes the tables known to a session.
///
/// # Errors
/// If one cannot be read.
pub async fn register(context: &SessionContext, directory: &Path) -> Result<()> {
    for table in TABLES {
        register_one(context, directory, table, ParquetReadOptions::default()).await?;
    }
    Ok(())
}

/// Makes the tables known to a session, with the order that their generator has given them.
///
/// # Errors
/// If one cannot be read.
pub async fn register_sorted(context: &SessionContext, directory: &Path) -> Result<()> {
    for table in TABLES {
        let keys: &[&str] = match table {
            "lineitem" => &["l_orderkey", "l_linenumber"],
            "orders" => &["o_orderkey"],
            "part" => &["p_partkey"],
            "customer" => &["c_custkey"],
            _ => &[],
        };
        let order: Vec<_> = keys.iter().map(|k| col(*k).sort(true, false)).collect();
        let orders = Vec::from_iter((!order.is_empty()).then_some(order));
        let options = ParquetReadOptions::default().file_sort_order(orders);
        register_one(context, directory, table, options).await?;
    }
    Ok(())
}

async fn register_one(
    context: &SessionContext,
    directory: &Path,
    table: &str,
    options: ParquetReadOptions<'_>,
) -> Result<()> {
    let path = directory.join(format!("{table}.parquet"));
    let path = path.to_str().ok_or("the data's path is not UTF-8")?;
    Ok(context.register_parquet(table, path, options).await?)
}

/// The text of a query, 1 to 22, for data of this scale.
#[must_use]
pub fn query(number: usize, scale: f64) -> String {
    let text = TEXTS[number - 1];
    // The one parameter that depends on the scale: q11's fraction.
    match number {
        11 => text.replace("* 0.0001", &format!("* {}", 0.0001 / scale)),
        _ => text.to_owned(),
    }
}

macro_rules! texts {
    ($($name:literal)*) => {
        [$(include_str!(concat!("../../../../examples/tpch/queries/q", $name, ".sql"))),*]
    };
}

const TEXTS: [&str; 22] = texts!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22);
