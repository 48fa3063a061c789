//! How fast spill files are written and read: codec, schema and message size, beside the same bytes
//! written and read by plain `std::fs` calls of 1 MiB. Ids are
//! `spill_io/{schema}/{codec}/{message KiB}`.
//!
//! | axis | values | why |
//! |---|---|---|
//! | schema | numbers, text, wide | two numbers a row; a number and a text of 24 characters; sixteen columns |
//! | codec | none, lz4, zstd | what `grace_hash_join.compression` offers |
//! | message | 4, 16, 64, 256, 1024 KiB | the smallest buffer is 16, the largest 256 |
//!
//! Rates are of the rows' bytes in memory, so that codecs and schemas compare. All cells take turns;
//! a cell is the median of its rounds, and each asserts its row count. The page cache is not emptied:
//! what is measured is the cost of the format, on top of whatever the disk costs.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a bench ends by panicking if it cannot go on, prints rates, and compares with plain files"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use clap::Parser;
use grace_hash_join::SpillCodec;
use grace_hash_join::testing::spill_speed::round_trip;
use tokio::runtime::Builder;

const BATCH_ROWS: usize = 8192;

const BLOCK: usize = 1 << 20;

/// Spill files beside plain ones.
#[derive(Parser)]
struct Args {
    /// Rows of a run.
    #[arg(long, default_value = "1000000")]
    rows: usize,
    /// Runs of each cell.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}

fn batches(schema: &str, rows: usize) -> Vec<RecordBatch> {
    let batch = |from: usize| {
        let rows = from..rows.min(from + BATCH_ROWS);
        let mixed = |row: usize| {
            (row as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .cast_signed()
        };
        let numbers = |shift: u32| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(
                rows.clone().map(|row| mixed(row) >> shift),
            ))
        };
        let text = || -> ArrayRef {
            let texts = rows
                .clone()
                .map(|row| format!("{:024}", mixed(row).unsigned_abs()));
            Arc::new(StringViewArray::from_iter_values(texts))
        };
        let columns: Vec<(String, ArrayRef)> = match schema {
            "numbers" => (0..2).map(|c| (format!("c{c}"), numbers(c * 32))).collect(),
            "text" => vec![("key".to_owned(), numbers(32)), ("text".to_owned(), text())],
            _ => (0..16)
                .map(|c| {
                    (
                        format!("c{c}"),
                        if c < 14 { numbers(c * 4) } else { text() },
                    )
                })
                .collect(),
        };
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    };
    (0..rows).step_by(BATCH_ROWS).map(batch).collect()
}

/// Bytes a second of `std::fs`, writing and reading.
fn plain(bytes: usize) -> (f64, f64) {
    let block = vec![7; BLOCK];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("plain");
    let start = Instant::now();
    let mut file = File::create(&path).expect("a file");
    for _ in 0..bytes / BLOCK {
        file.write_all(&block).expect("a write");
    }
    drop(file);
    let write = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut file = File::open(&path).expect("the file");
    let mut block = block;
    for _ in 0..bytes / BLOCK {
        file.read_exact(&mut block).expect("a read");
    }
    let read = start.elapsed().as_secs_f64();
    let bytes = (bytes / BLOCK * BLOCK) as f64;
    (bytes / write, bytes / read)
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2] / 1e6
}

/// One cell with its rounds, in bytes of rows a second.
struct Cell {
    schema: &'static str,
    codec: (&'static str, SpillCodec),
    kilobytes: usize,
    writes: Vec<f64>,
    reads: Vec<f64>,
    file_bytes: u64,
}

fn main() {
    let args = Args::parse();
    let executor = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("an executor");
    let codecs = [
        ("none", SpillCodec::Uncompressed),
        ("lz4", SpillCodec::Lz4Frame),
        ("zstd", SpillCodec::Zstd),
    ];
    println!("| cell | write MB/s | read MB/s | file / rows |\n|---|---|---|---|");
    for schema in ["numbers", "text", "wide"] {
        let batches = batches(schema, args.rows);
        let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
        let mut cells: Vec<Cell> = codecs
            .iter()
            .flat_map(|codec| [4, 16, 64, 256, 1024].map(|kilobytes| (*codec, kilobytes)))
            .map(|(codec, kilobytes)| Cell {
                schema,
                codec,
                kilobytes,
                writes: Vec::new(),
                reads: Vec::new(),
                file_bytes: 0,
            })
            .collect();
        let (mut plain_writes, mut plain_reads) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let (write, read) = plain(bytes);
            plain_writes.push(write);
            plain_reads.push(read);
            for cell in &mut cells {
                let trip = round_trip(&batches, cell.codec.1, cell.kilobytes << 10);
                let trip = executor.block_on(trip).expect("a round trip");
                assert_eq!(trip.rows, args.rows, "{schema}");
                cell.writes.push(bytes as f64 / trip.write.as_secs_f64());
                cell.reads.push(bytes as f64 / trip.read.as_secs_f64());
                cell.file_bytes = trip.file_bytes;
            }
        }
        let (write, read) = (median(&mut plain_writes), median(&mut plain_reads));
        println!("| spill_io/{schema}/plain file | {write:.0} | {read:.0} | 1.00 |");
        for cell in &mut cells {
            println!(
                "| spill_io/{}/{}/{} | {:.0} | {:.0} | {:.2} |",
                cell.schema,
                cell.codec.0,
                cell.kilobytes,
                median(&mut cell.writes),
                median(&mut cell.reads),
                cell.file_bytes as f64 / bytes as f64,
            );
        }
    }
}
