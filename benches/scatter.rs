//! Copying the rows of a batch to buckets: hash, counting sort, one gather a bucket and column. Ids
//! are `scatter/{schema}/{fan_out}`.
//!
//! | axis | values | why |
//! |---|---|---|
//! | fan-out | 4, 16, 64, 256 | the default, and what a deep split or a small share has |
//! | schema | narrow, mixed, wide | the numbers alone; texts; rows of 100 bytes |
//!
//! The rows are copied as one batch of 8,192 rows after the other, as they arrive. Each run asserts
//! that every bucket has rows.

#![expect(
    clippy::expect_used,
    reason = "a bench that cannot go on ends by panicking"
)]

mod common;

use arrow::record_batch::RecordBatch;
use common::{Payload, Shape};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use grace_hash_join::testing::parts::scatter as scatter_batch;

const ROWS: u64 = 200_000;

fn scatter(criterion: &mut Criterion) {
    for payload in [Payload::Narrow, Payload::Mixed, Payload::Wide] {
        let shape = Shape {
            payload,
            ..Shape::SPARSE
        };
        let inputs = shape.inputs(ROWS, 1).expect("the inputs");
        let name = format!("scatter/{payload:?}").to_lowercase();
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20).throughput(Throughput::Elements(ROWS));
        for fan_out in [4, 16, 64, 256] {
            group.bench_function(BenchmarkId::from_parameter(fan_out), |bencher| {
                bencher.iter(|| scatter_all(inputs.build(), fan_out));
            });
        }
        group.finish();
    }
}

fn scatter_all(batches: &[RecordBatch], fan_out: usize) {
    for batch in batches {
        let buckets = scatter_batch(batch, fan_out).expect("a copy");
        assert_eq!(buckets, fan_out);
    }
}

criterion_group!(benches, scatter);
criterion_main!(benches);
