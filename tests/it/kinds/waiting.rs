//! Hangs and cancelling: inputs that come late or not at all, work that gives nothing, streams that
//! are dropped.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_common::JoinType::{self, Full, Inner, LeftAnti, LeftMark, LeftSemi, RightSemi};
use datafusion_common::Result;
use datafusion_execution::SendableRecordBatchStream;
use futures::StreamExt;
use grace_hash_join::testing::{Environment, FilterKind, JOIN_TYPES, Rows, Table, collect};
use grace_hash_join::{GraceHashJoinConfig, GraceHashJoinStream, SpillPolicy};

use super::{Written, cut, keys, numbers, pairs};
use crate::run;

/// The most that one poll may take, and that dropping the stream may take.
const AT_ONCE: Duration = Duration::from_millis(200);

/// The time that this thread has worked, which a busy machine does not prolong; where that is not
/// known, the time that went by.
fn worked() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    let known = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = known.and_then(|line| line.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// Lets a join run beside another task on the one thread of the runtime for a while, and drops it.
/// Returns the longest time that the other task had to wait for its turn.
async fn beside_another_task(mut stream: GraceHashJoinStream, time: Duration) -> Duration {
    let longest = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&longest);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap();
    let other = tokio::spawn(async move {
        let mut before = worked();
        loop {
            tokio::task::yield_now().await;
            let now = worked();
            noted.fetch_max(millis(now.saturating_sub(before)), SeqCst);
            before = now;
        }
    });
    let _ = tokio::time::timeout(time, async { while stream.next().await.is_some() {} }).await;
    let start = worked();
    drop(stream);
    let dropping = millis(worked().saturating_sub(start));
    other.abort();
    Duration::from_millis(longest.load(SeqCst).max(dropping))
}

fn yields(written: &Written, config: &GraceHashJoinConfig, what: &str) {
    let (joined, config) = (written.clone(), config.clone());
    let longest = run(&written.case(), move || async move {
        let environment = Environment::unlimited(8192).unwrap();
        let stream = joined.setting(config).start(&environment).unwrap();
        let longest = beside_another_task(stream, Duration::from_millis(150)).await;
        environment.becomes_clean().await.unwrap();
        longest
    });
    let join_type = written.join_type;
    assert!(longest < AT_ONCE, "{join_type:?}, {what}: {longest:?}");
}

/// cockroach#164879, velox#15286, velox#15434, IMPALA-5586: 400,000,000 pairs, all of them rejected.
#[test]
fn a_filter_that_rejects_every_pair_holds_nobody_up() {
    let side = cut(pairs(&vec![(Some(7), 1); 20_000]), 8192);
    for join_type in JOIN_TYPES {
        let written = Written::new(join_type, &side, &side).filter(FilterKind::AlwaysFalse);
        for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
            let config = GraceHashJoinConfig::builder().with_spill(spill).build();
            yields(&written, &config.unwrap(), &format!("{spill:?}"));
        }
    }
    let written = Written::new(JoinType::RightAnti, &side, &side).filter(FilterKind::NullValued);
    let config = GraceHashJoinConfig::builder()
        .with_spill(SpillPolicy::Chunks(9000))
        .build();
    yields(&written, &config.unwrap(), "in chunks");
}

/// The same without a filter: other keys' rows with the same hash, or in the same slot.
#[test]
fn a_chain_of_other_keys_rows_holds_nobody_up() {
    let (build, probe) = (numbers(0..20_000), numbers(20_000..40_000));
    for join_type in JOIN_TYPES {
        // All hashes are the same; or their low bits alone differ, which no slot looks at.
        for mask in [0, 0xffff_ffff] {
            for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
                let written = Written::new(join_type, &build, &probe);
                let config = GraceHashJoinConfig::builder()
                    .with_spill(spill)
                    .with_fan_out(2);
                let config = config.build().unwrap().with_hash_mask(mask);
                yields(&written, &config, &format!("{spill:?}, mask {mask:x}"));
            }
        }
    }
}

/// An input of these batches, each after a while.
fn late(table: &Table, wait: Duration) -> SendableRecordBatchStream {
    let batches = futures::stream::iter(table.batches.clone()).then(move |batch| async move {
        tokio::time::sleep(wait).await;
        Result::Ok(batch)
    });
    let schema = Arc::clone(&table.schema);
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

/// trino#7454: the probe side is over before the build side began.
#[test]
fn a_probe_side_that_ended_first_waits_for_a_late_build_side() {
    let (build, probe) = (numbers(0..10), keys(&[]));
    for (join_type, rows) in [(Inner, 0), (LeftAnti, 10), (Full, 10)] {
        for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
            let written = Written::new(join_type, &build, &probe);
            run(&written.case(), move || async move {
                let config = GraceHashJoinConfig::builder().with_spill(spill).build();
                let setting = written.setting(config.unwrap());
                let environment = Environment::unlimited(8192).unwrap();
                let build = late(&written.build, Duration::from_millis(100));
                let probe = late(&written.probe, Duration::ZERO);
                let stream = setting.start_with(&environment, build, probe).unwrap();
                let outcome = collect(stream).await.unwrap();
                outcome.end.unwrap();
                assert_eq!(Rows::of(&outcome.batches).unwrap().len(), rows);
                environment.becomes_clean().await.unwrap();
            });
        }
    }
}

/// velox#5423, auron#1957: whoever feeds the join is let go when the join needs no more.
#[test]
fn a_producer_that_waits_for_room_is_let_go_when_the_join_is_done() {
    for (build, limit) in [(keys(&[]), None), (numbers(0..100), Some(1))] {
        for join_type in [Inner, LeftSemi, RightSemi, LeftMark] {
            for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
                // A limit of build rows is reached when the probe side is over.
                if limit.is_some() && matches!(join_type, LeftSemi | LeftMark) {
                    continue;
                }
                let written = Written::new(join_type, &build, &cut(numbers(0..100), 1));
                is_let_go(&written, limit, spill);
            }
        }
    }
}

fn is_let_go(written: &Written, limit: Option<usize>, spill: SpillPolicy) {
    let written = written.clone();
    run(&written.case(), move || async move {
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<RecordBatch>(1);
        let batches = written.probe.batches.clone();
        let producer = tokio::spawn(async move {
            for batch in batches {
                if sender.send(batch).await.is_err() {
                    return true;
                }
            }
            // Nobody said stop; then everything was taken.
            false
        });
        let batches = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx)).map(Result::Ok);
        let schema = Arc::clone(&written.probe.schema);
        let probe: SendableRecordBatchStream =
            Box::pin(RecordBatchStreamAdapter::new(schema, batches));
        let config = GraceHashJoinConfig::builder().with_spill(spill).build();
        let setting = written.setting(config.unwrap());
        let environment = Environment::unlimited(1).unwrap();
        let build = late(&written.build, Duration::ZERO);
        let mut stream: Pin<Box<GraceHashJoinStream>> =
            Box::pin(setting.start_with(&environment, build, probe).unwrap());
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            rows += batch.unwrap().num_rows();
            if limit.is_some_and(|limit| rows >= limit) {
                break;
            }
        }
        drop(stream);
        let ended = tokio::time::timeout(Duration::from_secs(1), producer).await;
        let was_stopped = ended.expect("the producer still waits").unwrap();
        assert!(
            was_stopped || spill == SpillPolicy::All,
            "{:?}",
            written.join_type
        );
        environment.becomes_clean().await.unwrap();
    });
}

/// clickhouse#44351: a limit of one row over many buckets and partitions, all of them on disk.
#[test]
fn a_limit_of_one_row_ends_every_partition_in_good_order() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    let side = cut(numbers(0..300), 100);
    for join_type in [Full, LeftAnti] {
        let environment = Arc::new(Environment::unlimited(64).unwrap());
        let config = GraceHashJoinConfig::builder()
            .with_spill(SpillPolicy::All)
            .with_fan_out(64)
            .build()
            .unwrap();
        let written = Written::new(join_type, &side, &side);
        let setting = written.setting(config);
        let join = |_| {
            let mut stream = setting.start(&environment).unwrap();
            runtime.spawn(async move { stream.next().await })
        };
        let joins: Vec<_> = (0..8).map(join).collect();
        for join in joins {
            let first = runtime.block_on(join).unwrap();
            assert_eq!(first.is_none(), join_type == LeftAnti, "{join_type:?}");
            assert!(first.is_none_or(|batch| batch.unwrap().num_rows() > 0));
        }
        drop(runtime.block_on(environment.becomes_clean()));
    }
}

/// datafusion#12633: a limit takes what it needs of the input, and matches come a batch at a time.
#[test]
fn a_limit_over_many_matches_reads_one_probe_batch() {
    let side = cut(numbers(vec![7; 8192]), 1024);
    let written = Written::new(Inner, &side, &side);
    run(&written.case(), move || async move {
        let setting = written.setting(GraceHashJoinConfig::default());
        let environment = Environment::greedy(8 << 20, 8192).unwrap();
        let mut stream = setting.start(&environment).unwrap();
        let mut rows = 0;
        for _ in 0..100 {
            let batch = stream.next().await.unwrap().unwrap();
            assert!(batch.num_rows() <= 8192);
            rows += batch.num_rows();
        }
        let stats = stream.stats();
        assert!(rows > 100 * 4096, "{rows} rows in 100 batches");
        assert!(stats.peak_bytes <= 4 << 20, "{stats:?}");
        assert_eq!(stats.probe_batches, 1, "{stats:?}");
        drop(stream);
        environment.becomes_clean().await.unwrap();
    });
}

/// The same to the end, with fewer rows: each of 4,194,304 pairs, of which no column comes out.
#[test]
fn all_pairs_of_one_key_come_in_batches() {
    let side = cut(numbers(vec![7; 2048]), 1024);
    let written = Written::new(Inner, &side, &side).columns(&[]);
    run(&written.case(), move || async move {
        let environment = Environment::greedy(8 << 20, 8192).unwrap();
        let setting = written.setting(GraceHashJoinConfig::default());
        let mut stream = setting.start(&environment).unwrap();
        let (mut rows, mut most) = (0, 0);
        while let Some(batch) = stream.next().await {
            let batch = batch.unwrap();
            rows += batch.num_rows();
            most = most.max(batch.num_rows());
        }
        assert_eq!((rows, most), (4_194_304, 8192));
        assert!(stream.stats().peak_bytes <= 2 << 20, "{:?}", stream.stats());
    });
}
