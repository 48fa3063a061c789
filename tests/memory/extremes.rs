//! Few files at a time, and rows that are larger than the memory.

use std::sync::Arc;

use datafusion_common::JoinType;
use datafusion_execution::DiskManager;
use datafusion_execution::memory_pool::UnboundedMemoryPool;
use datafusion_execution::runtime_env::RuntimeEnvBuilder;
use futures::StreamExt;
use grace_hash_join::testing::{Environment, JOIN_TYPES, MemoryFiles, within};
use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};

use super::data::{Input, Spread, Text};
use super::expected::Sums;
use super::measure::{Pool, Subject};
use super::turn;

fn subject(rows: usize, width: usize, join_type: JoinType) -> Subject {
    let input = |is_build| Input {
        spread: Spread::Uniform,
        text: Text::Plain,
        rows,
        batch: 1 + rows / 16,
        width: (width, 10),
        is_build,
        is_key_only: false,
    };
    Subject::new(input(true), input(false), join_type)
}

/// The most files at one time, where every pair is split so often.
async fn most_files(subject: Subject, fan_out: usize, levels: u8) -> usize {
    let files = MemoryFiles::new(1 << 16);
    let disk = DiskManager::builder().with_temp_file_factory(Arc::<MemoryFiles>::clone(&files));
    let pool = Arc::new(UnboundedMemoryPool::default());
    let mut around = Environment::new(pool, 64).unwrap();
    let runtime = RuntimeEnvBuilder::new().with_disk_manager_builder(disk);
    let context = datafusion_execution::TaskContext::default();
    around.context = Arc::new(context.with_runtime(runtime.build_arc().unwrap()));
    let config = GraceHashJoinConfig::builder()
        .with_fan_out(fan_out)
        .with_spill(SpillPolicy::Split(levels));
    let subject = Subject {
        config: config.build().unwrap(),
        ..subject
    };
    let (build, probe) = (subject.build.stream(|| {}), subject.probe.stream(|| {}));
    let mut stream = subject
        .join()
        .execute(build, probe, &around.context, 0, None)
        .unwrap();
    let mut sums = Sums::default();
    while let Some(batch) = stream.next().await {
        sums.add(
            subject.build,
            subject.probe,
            subject.join_type,
            &batch.unwrap(),
        );
    }
    assert_eq!(sums, subject.expected());
    assert_eq!(stream.stats().max_level, u64::from(levels));
    drop(stream);
    assert_eq!(files.live(), 0, "files are left");
    files.most_live()
}

/// A file holds its descriptor for life, so pending pairs count.
#[test]
fn there_are_at_most_two_files_for_each_bucket_of_each_level() {
    let _turn = turn();
    for join_type in [JoinType::Inner, JoinType::Full] {
        for (fan_out, levels) in [(2, 4), (4, 3), (16, 2)] {
            let subject = subject(4000, 10, join_type);
            let run = move || most_files(subject, fan_out, levels);
            let most = within(std::time::Duration::from_mins(1), run).unwrap();
            // The pair that is split is there until its rows are in its children.
            let allowed = 2 * fan_out * usize::from(levels);
            assert!(
                most <= allowed,
                "{most} files where {allowed} are allowed: {fan_out} buckets, {levels} levels"
            );
            assert!(most > fan_out, "{most} files prove nothing");
        }
    }
}

/// Twelve rows, each of them larger than the pool; then a pool that holds two.
#[test]
fn a_row_that_is_larger_than_the_memory_is_joined_or_refused() {
    let _turn = turn();
    for join_type in JOIN_TYPES {
        let subject = subject(12, 700_000, join_type);
        let expected = subject.expected();
        // Whatever comes is checked: the right answer, or the floor's error, and nothing left.
        let _ = subject.run(Pool::Greedy(512 << 10), expected);
        let taken = subject.run(Pool::Greedy(4 << 20), expected);
        assert!(taken.is_some(), "{join_type} in 4 MiB");
    }
}
