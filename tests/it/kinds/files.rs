//! Spill files and error paths: what is short or damaged is an error, one error is the end, and
//! nothing is left behind.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int32Array, StringArray, StringViewArray, StructArray,
};
use arrow::datatypes::{DataType, Field, Fields, Int32Type};
use datafusion_common::JoinType::{self, Full, Inner, LeftAnti};
use datafusion_execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, FaultyFiles, FileFault, JOIN_TYPES, KeyKind, Pressure, Spills, Table,
    collect,
};
use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};

use super::{Written, cut, numbers, table};
use crate::run;

fn unlimited() -> Arc<dyn MemoryPool> {
    Arc::new(UnboundedMemoryPool::default())
}

/// matrixone#26412: a header cut short was taken for the end of the file.
#[test]
fn a_file_that_lacks_its_last_bytes_is_an_error_and_not_fewer_rows() {
    let side = cut(numbers(0..500), 100);
    for join_type in [Inner, Full, LeftAnti] {
        let written = Written::new(join_type, &side, &side);
        let expected = written.oracle();
        run(&written.case(), move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_spill(SpillPolicy::All)
                .with_fan_out(2)
                .build();
            let setting = written.setting(config.unwrap());
            for bytes in (1..=40).chain([100, 1000]) {
                for file in 0..4 {
                    let files = FaultyFiles::new(FileFault::Truncated { file, bytes }).unwrap();
                    let around = Environment::with_files(unlimited(), 50, &files).unwrap();
                    let stream = setting.start(&around);
                    let survived = Setting::survives(stream, &around, &expected).await;
                    let is_right = survived.unwrap_or_else(|why| panic!("{bytes} bytes: {why}"));
                    assert!(files.struck() && !is_right, "{bytes} bytes of file {file}");
                }
            }
        });
    }
}

/// tidb#59381, starrocks#65027: a write that failed in the background, and the answer was shorter.
#[test]
fn a_disk_that_is_full_at_the_nth_write_is_one_error() {
    for join_type in JOIN_TYPES {
        let case = Case {
            pressure: Pressure::All,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let setting = case.setting().unwrap();
            let around = case.environment().unwrap();
            let whole = setting
                .check(&around, &expected, Spills::Must)
                .await
                .unwrap();
            let bytes = whole.stats.spilled_bytes;
            // A quota that is reached at one of twenty points of the writing.
            for part in 1..=20 {
                let quota = bytes * part / 20;
                let around = case.environment().unwrap();
                around.disk.set_max_temp_directory_size(quota).unwrap();
                let survived = Setting::survives(setting.start(&around), &around, &expected);
                let is_right = survived.await.unwrap();
                assert_eq!(is_right, quota == bytes, "{quota} of {bytes} bytes");
            }
        });
    }
}

/// duckdb#6420, ASTERIXDB-1751, tidb#63222 and others: files left behind.
#[test]
fn no_file_is_left_wherever_the_stream_was_dropped() {
    use futures::StreamExt;
    let side = cut(numbers(0..200), 20);
    for spill in [
        SpillPolicy::All,
        SpillPolicy::Split(2),
        SpillPolicy::Chunks(20),
    ] {
        let written = Written::new(Full, &side, &side);
        run(&written.case(), move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_spill(spill)
                .with_fan_out(4);
            let setting = written.setting(config.build().unwrap());
            for polls in 0.. {
                let around = Environment::unlimited(10).unwrap();
                let mut stream = setting.start(&around).unwrap();
                let mut ended = false;
                // Polls, and not batches: a drop in the middle of a build or of a write.
                for _ in 0..polls {
                    let polled = futures::poll!(stream.next());
                    ended |= matches!(polled, std::task::Poll::Ready(None));
                    if ended {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(stream);
                around.becomes_clean().await.unwrap();
                if ended || polls > 300 {
                    break;
                }
            }
        });
    }
}

/// How many bytes a join of these sides writes with all of its 16 buckets on disk.
fn spilled(build: &Table, probe: &Table) -> u64 {
    let written = Written::new(Inner, build, probe);
    run(&written.case(), move || async move {
        let config = GraceHashJoinConfig::builder()
            .with_spill(SpillPolicy::All)
            .with_fan_out(16)
            .build();
        let around = Environment::unlimited(8192).unwrap();
        let outcome = collect(written.setting(config.unwrap()).start(&around).unwrap()).await;
        let outcome = outcome.unwrap();
        outcome.end.unwrap();
        outcome.stats.spilled_bytes
    })
}

fn with_column(array: ArrayRef) -> Table {
    let rows = i32::try_from(array.len()).unwrap();
    let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..rows));
    table(1, vec![("k", keys), ("payload", array)])
}

/// datafusion#19414: a view's buffers, or a dictionary's values, were written once per slice.
#[test]
fn what_is_written_is_what_the_rows_hold_whatever_they_share() {
    let rows = 10_000;
    let words: Vec<String> = (0..rows).map(|i| format!("{i:060}")).collect();
    let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(&words));
    let strings: ArrayRef = Arc::new(StringArray::from_iter_values(&words));
    let inside = |array: &ArrayRef| -> ArrayRef {
        let fields = Fields::from(vec![Field::new("v", array.data_type().clone(), true)]);
        Arc::new(StructArray::new(fields, vec![Arc::clone(array)], None))
    };
    let item = Arc::new(Field::new("item", DataType::Utf8View, true));
    let lists: ArrayRef = Arc::new(arrow::array::ListArray::new(
        item,
        arrow::buffer::OffsetBuffer::from_lengths(vec![1; rows]),
        Arc::clone(&views),
        None,
    ));
    // Many rows with few words: a dictionary is written once, and its keys for each row.
    let few = |i: usize| format!("{:060}", i % 50);
    let few: DictionaryArray<Int32Type> = (0..rows)
        .map(few)
        .collect::<Vec<_>>()
        .iter()
        .map(|w| Some(w.as_str()))
        .collect();
    let few: ArrayRef = Arc::new(few);
    let cases = [
        ("views", Arc::clone(&views), rows * 76),
        ("views in structs", inside(&views), rows * 76),
        ("views in lists", lists, rows * 80),
        ("strings", Arc::clone(&strings), rows * 64),
        ("a small dictionary", Arc::clone(&few), rows * 4 + 50 * 64),
        (
            "a small dictionary in structs",
            inside(&few),
            rows * 4 + 50 * 64,
        ),
    ];
    let none = numbers([-1]);
    for (what, payload, bytes) in cases {
        let build = with_column(payload);
        let written = spilled(&build, &none);
        // Its own bytes and the key; a dictionary once for each of 16 files, and what a frame takes.
        let keys = rows * 4;
        let shared = if what.contains("small") {
            16 * 50 * 64
        } else {
            0
        };
        let most = (bytes + keys + shared) * 3 / 2 + 16 * 2048;
        assert!(written <= most as u64, "{what}: {written} bytes of {most}");
        // In slices, as an exchange hands them out.
        let written = spilled(&cut(build, 500), &none);
        assert!(
            written <= most as u64 * 2,
            "{what} in slices: {written} bytes of {most}"
        );
    }
}

/// datafusion#17340: what was read back kept far more memory than was counted.
#[test]
fn rows_that_were_read_back_keep_little_more_than_they_need() {
    for key in [KeyKind::Int64, KeyKind::Utf8View, KeyKind::Utf8] {
        let case = Case {
            key,
            pressure: Pressure::All,
            batch_size: 50,
            shape: grace_hash_join::testing::Shape::Large,
            ..Case::new(JoinType::LeftSemi)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let setting = case.setting().unwrap();
            let around = Environment::unlimited(50).unwrap();
            let outcome = setting
                .check(&around, &expected, Spills::Must)
                .await
                .unwrap();
            let held: usize = outcome
                .batches
                .iter()
                .map(datafusion_common::utils::memory::get_record_batch_memory_size)
                .sum();
            let stats = outcome.stats;
            assert!(
                stats.peak_bytes <= 2 * stats.spilled_bytes + (1 << 20),
                "{stats:?}"
            );
            assert!(
                held as u64 <= 2 * stats.spilled_bytes,
                "{held} bytes, {stats:?}"
            );
        });
    }
}
