//! From the floor to twice the build, in steps of two: more memory is never worse, and all of it is
//! accounted for.

use datafusion_common::JoinType;
use grace_hash_join::testing::JOIN_TYPES;

use super::data::{Input, Spread, Text};
use super::expected::Sums;
use super::measure::{Pool, Subject, Taken};
use super::turn;

/// The floor of the join, with room for the batches in hand that it is swept with.
const FLOOR: usize = 512 << 10;

/// A data set of the sweep.
#[derive(Clone, Copy, Debug)]
struct Data {
    name: &'static str,
    spread: Spread,
    rows: (usize, usize),
    batch: usize,
    width: (usize, usize),
}

const NARROW: (usize, usize) = (10, 40);

const UNIFORM: Data = Data {
    name: "uniform",
    spread: Spread::Uniform,
    rows: (16_000, 16_000),
    batch: 512,
    width: NARROW,
};

const WIDE: Data = Data {
    name: "wide rows",
    spread: Spread::Uniform,
    rows: (480, 480),
    batch: 16,
    width: (2000, 4000),
};

const ALL: [Data; 5] = [
    UNIFORM,
    Data {
        name: "zipf",
        spread: Spread::Zipf,
        ..UNIFORM
    },
    Data {
        name: "one key 90 %",
        spread: Spread::OneKey(90),
        rows: (16_000, 8_000),
        ..UNIFORM
    },
    Data {
        name: "one key",
        spread: Spread::OneKey(100),
        rows: (16_000, 8_000),
        ..UNIFORM
    },
    WIDE,
];

/// How many times as many rows the environment asks for.
fn scale() -> usize {
    let scale = std::env::var("GRACE_SWEEP").ok();
    scale.and_then(|scale| scale.parse().ok()).unwrap_or(1)
}

impl Data {
    fn subject(self, join_type: JoinType) -> Subject {
        let input = |rows: usize, is_build| Input {
            spread: self.spread,
            text: Text::Plain,
            rows: rows * scale(),
            batch: self.batch * scale().min(8),
            width: self.width,
            is_build,
            is_key_only: false,
        };
        Subject::new(
            input(self.rows.0, true),
            input(self.rows.1, false),
            join_type,
        )
    }
}

#[expect(clippy::print_stdout, reason = "the table of docs/memory.md")]
fn print(cells: [&str; 8]) {
    let [
        data,
        join_type,
        pool,
        peak,
        allocated,
        ratio,
        written,
        files,
    ] = cells;
    println!(
        "{data:13} {join_type:10} {pool:>9} {peak:>9} {allocated:>9} {ratio:>6} {written:>9} {files:>5}"
    );
}

fn print_head() {
    print([
        "data",
        "join type",
        "pool",
        "peak",
        "allocated",
        "ratio",
        "written",
        "files",
    ]);
}

/// A line of the table, in KiB.
fn print_cell(data: &str, join_type: JoinType, limit: Option<usize>, taken: &Taken) {
    let kib = |bytes: usize| (bytes >> 10).to_string();
    let ratio = taken.allocated * 100 / taken.pool_peak.max(1);
    print([
        data,
        &join_type.to_string(),
        &limit.map_or_else(|| "unlimited".to_string(), kib),
        &kib(taken.pool_peak),
        &kib(taken.allocated),
        &format!("{}.{:02}", ratio / 100, ratio % 100),
        &(taken.stats.spilled_bytes >> 10).to_string(),
        &taken.stats.spill_count.to_string(),
    ]);
}

/// Runs a cell, and holds it to what a cell promises by itself.
fn cell(data: &str, subject: &Subject, limit: Option<usize>, expected: Sums) -> Option<Taken> {
    let pool = limit.map_or(Pool::Unlimited, Pool::Greedy);
    let taken = subject.run(pool, expected)?;
    print_cell(data, subject.join_type, limit, &taken);
    assert!(
        taken.is_honest(),
        "{data}, {subject:?} in {pool:?}: {} bytes were allocated where {} were reserved",
        taken.allocated,
        taken.pool_peak
    );
    // The batch in hand exists already, so it is counted whatever the pool says.
    let in_hand = usize::try_from(taken.stats.largest_batch_bytes).unwrap();
    let limit = limit.unwrap_or(usize::MAX).max(FLOOR);
    assert!(
        taken.pool_peak <= limit.saturating_add(in_hand),
        "{data}, {subject:?} in {pool:?}: {} bytes were reserved",
        taken.pool_peak
    );
    Some(taken)
}

/// All steps of one data set and join type; each step is held to the one before.
fn sweep(data: Data, join_type: JoinType) {
    let subject = data.subject(join_type);
    let expected = subject.expected();
    let unlimited = cell(data.name, &subject, None, expected).unwrap();
    assert_eq!(unlimited.stats.spill_count, 0);
    let size = unlimited.build_peak;
    let mut before: Option<Taken> = None;
    let mut limit = FLOOR / 4;
    while limit < 4 * size {
        let taken = cell(data.name, &subject, Some(limit), expected);
        let what = format!("{}, {join_type}, {limit} bytes for {size}", data.name);
        match (before, taken) {
            (Some(_), None) => panic!("{what}: less was enough"),
            (None, None) => assert!(limit < FLOOR, "{what}: not enough"),
            (None, Some(_)) => {}
            (Some(before), Some(taken)) => assert!(
                taken.stats.spilled_bytes <= before.stats.spilled_bytes,
                "{what}: {:?}, and with half of that {:?}",
                taken.stats,
                before.stats
            ),
        }
        if let Some(taken) = taken {
            let spilled = taken.stats.spilled_bytes > 0;
            assert!(spilled || limit > size / 2, "{what}: nothing was written");
            assert!(!spilled || limit < 2 * size, "{what}: {:?}", taken.stats);
        }
        before = taken.or(before);
        limit *= 2;
    }
}

#[test]
fn more_memory_is_never_worse_and_all_of_it_is_accounted_for() {
    let _turn = turn();
    print_head();
    for data in ALL {
        for join_type in JOIN_TYPES {
            sweep(data, join_type);
        }
    }
}

/// Half of the build and a quarter of it, for what the sweep has not.
fn parts(data: &str, subject: &Subject) {
    let expected = subject.expected();
    let unlimited = cell(data, subject, None, expected).unwrap();
    for part in [2, 4] {
        let limit = (unlimited.build_peak / part).max(FLOOR);
        assert!(cell(data, subject, Some(limit), expected).is_some());
    }
}

const FEW_TYPES: [JoinType; 5] = [
    JoinType::Inner,
    JoinType::Full,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::RightMark,
];

#[test]
fn computed_keys_are_accounted_for() {
    let _turn = turn();
    print_head();
    for join_type in FEW_TYPES {
        let mut subject = UNIFORM.subject(join_type);
        subject.has_computed_keys = true;
        parts("computed", &subject);
    }
}

#[test]
fn views_are_accounted_for() {
    let _turn = turn();
    print_head();
    for data in [UNIFORM, WIDE] {
        for join_type in FEW_TYPES {
            let mut subject = data.subject(join_type);
            subject.build.text = Text::View;
            subject.probe.text = Text::View;
            parts("views", &subject);
        }
    }
}

#[test]
fn dictionaries_are_accounted_for() {
    let _turn = turn();
    print_head();
    for data in [UNIFORM, WIDE] {
        for join_type in FEW_TYPES {
            let mut subject = data.subject(join_type);
            subject.build.text = Text::Dictionary;
            subject.probe.text = Text::Dictionary;
            parts("dictionaries", &subject);
        }
    }
}

#[test]
fn large_batches_are_accounted_for() {
    let _turn = turn();
    print_head();
    for data in [UNIFORM, WIDE] {
        for join_type in JOIN_TYPES {
            let mut subject = data.subject(join_type);
            subject.build.batch = subject.build.rows / 4;
            subject.probe.batch = subject.probe.rows / 2;
            parts("large batches", &subject);
        }
    }
}
