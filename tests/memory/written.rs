//! What goes to disk is about what does not fit, and one key that does not fit goes there once.

use datafusion_common::JoinType;
use grace_hash_join::testing::JOIN_TYPES;

use super::data::{Input, Spread, Text};
use super::measure::{Pool, Subject};
use super::turn;

fn input(spread: Spread, rows: usize, is_build: bool) -> Input {
    Input {
        spread,
        text: Text::Plain,
        rows,
        batch: 256,
        width: (250, 100),
        is_build,
        is_key_only: false,
    }
}

/// Every row has a partner, so the Bloom filter keeps nothing from the disk.
#[test]
fn no_more_is_written_than_does_not_fit() {
    let _turn = turn();
    let rows = 60_000;
    let build = input(Spread::Unique, rows, true);
    let probe = input(Spread::Unique, rows, false);
    let subject = Subject::new(build, probe, JoinType::Inner);
    let expected = subject.expected();
    let unlimited = subject.run(Pool::Unlimited, expected).unwrap();
    let size = unlimited.build_peak;
    let both = build.bytes() + probe.bytes();
    for part in [2, 4, 10] {
        let budget = size / part;
        let stats = subject.run(Pool::Greedy(budget), expected).unwrap().stats;
        let does_not_fit = both - both / part;
        let most = does_not_fit + does_not_fit * 15 / 100;
        let written = usize::try_from(stats.spilled_bytes).unwrap();
        assert!(written > 0);
        assert_eq!(stats.max_level, 1, "1/{part}: {stats:?}");
        assert!(
            written <= most,
            "1/{part}: {written} bytes were written where {does_not_fit} do not fit: {stats:?}"
        );
    }
}

#[test]
fn one_key_that_all_rows_have_is_written_once_and_joined_inside_the_pool() {
    let _turn = turn();
    for join_type in JOIN_TYPES {
        let subject = Subject::new(
            input(Spread::OneKey(100), 16_000, true),
            input(Spread::OneKey(100), 8_000, false),
            join_type,
        );
        // Where only keys are kept of the build side, more of them.
        let subject = match subject.build.is_key_only {
            true => Subject::new(
                input(Spread::OneKey(100), 160_000, true),
                subject.probe,
                join_type,
            ),
            false => subject,
        };
        let expected = subject.expected();
        let unlimited = subject.run(Pool::Unlimited, expected).unwrap();
        let budget = unlimited.build_peak / 8;
        let taken = subject.run(Pool::Greedy(budget), expected).unwrap();
        let what = format!("{join_type} in {budget} bytes: {:?}", taken.stats);
        let input = subject.build.bytes() + subject.probe.bytes();
        assert!(taken.stats.spilled_bytes > 0, "{what}");
        assert!(taken.stats.spilled_bytes <= 2 * input as u64, "{what}");
        assert!(taken.pool_peak <= budget, "{what}: {}", taken.pool_peak);
        assert!(taken.is_honest(), "{what}: {}", taken.allocated);
    }
}
