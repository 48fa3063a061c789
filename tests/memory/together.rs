//! Joins that share a pool, with each other and with neighbours who take what they can get: all of
//! them finish, with the right answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion_common::JoinType;
use datafusion_execution::SendableRecordBatchStream;
use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use futures::StreamExt;
use futures::future::join_all;
use grace_hash_join::testing::{Environment, within};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig, JoinStats};

use super::data::{ID, Input, KEY, Spread, TEXT, Text};
use super::expected::Sums;
use super::measure::Subject;
use super::turn;

/// How long it may take before it counts as a deadlock.
const WATCHDOG: Duration = Duration::from_mins(1);

type NewPool = fn(usize) -> Arc<dyn MemoryPool>;

fn fair(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(FairSpillPool::new(bytes))
}

fn greedy(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(GreedyMemoryPool::new(bytes))
}

const POOLS: [NewPool; 2] = [fair, greedy];

/// Rows of some 3 KiB.
fn wide(spread: Spread, rows: usize, is_build: bool) -> Input {
    Input {
        spread,
        text: Text::Plain,
        rows,
        batch: 16,
        width: (2000, 2000),
        is_build,
        is_key_only: false,
    }
}

/// A join of two inputs of so many bytes, about.
fn of_bytes(bytes: usize, join_type: JoinType) -> Subject {
    let rows = bytes / 3000;
    let build = wide(Spread::Uniform, rows, true);
    Subject::new(build, wide(Spread::Uniform, rows, false), join_type)
}

/// Reads a join to its end, and checks the answer.
async fn read(
    subject: &Subject,
    around: &Environment,
    inputs: [SendableRecordBatchStream; 2],
    partition: usize,
    mut after: impl FnMut(),
) -> JoinStats {
    let [build, probe] = inputs;
    let stream = subject
        .join()
        .execute(build, probe, &around.context, partition, None);
    let mut stream = stream.unwrap();
    let mut sums = Sums::default();
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap_or_else(|error| panic!("{subject:?}: {error}"));
        sums.add(subject.build, subject.probe, subject.join_type, &batch);
        after();
    }
    assert_eq!(sums, subject.expected(), "{:?}", stream.stats());
    stream.stats()
}

fn inputs(subject: &Subject) -> [SendableRecordBatchStream; 2] {
    [subject.build.stream(|| {}), subject.probe.stream(|| {})]
}

fn checked(what: &str, run: impl Future<Output = ()> + Send + 'static) {
    within(WATCHDOG, move || run).unwrap_or_else(|reason| panic!("{what}: {reason}"));
}

/// Two partitions have all the rows.
#[test]
fn partitions_of_which_most_are_empty_share_a_pool() {
    let _turn = turn();
    let full = of_bytes(6 << 20, JoinType::Full);
    let empty = of_bytes(0, JoinType::Full);
    for pool in POOLS {
        for partitions in [1, 2, 4, 24] {
            let config = GraceHashJoinConfig::builder().with_partitions(partitions);
            let config = config.build().unwrap();
            let of = |partition| {
                let subject = if partition % 12 == 0 { &full } else { &empty };
                Subject {
                    config: config.clone(),
                    ..subject.clone()
                }
            };
            let subjects: Vec<Subject> = (0..partitions).map(of).collect();
            let what = format!("{partitions} partitions in {}", pool(0));
            checked(&what, async move {
                let around = Environment::new(pool(4 << 20), 64).unwrap();
                let join =
                    |(number, subject)| read(subject, &around, inputs(subject), number, || {});
                let stats = join_all(subjects.iter().enumerate().map(join)).await;
                assert!(stats.iter().any(|stats| stats.spilled_rows > 0));
                around.becomes_clean().await.unwrap();
            });
        }
    }
}

/// A consumer that takes everything that is left, at one moment.
#[derive(Clone)]
struct Neighbour {
    pool: Arc<dyn MemoryPool>,
    held: Arc<Mutex<MemoryReservation>>,
}

impl Neighbour {
    fn new(pool: &Arc<dyn MemoryPool>) -> Self {
        let held = MemoryConsumer::new("neighbour").register(pool);
        Self {
            pool: Arc::clone(pool),
            held: Arc::new(Mutex::new(held)),
        }
    }

    fn take(&self) {
        let MemoryLimit::Finite(limit) = self.pool.memory_limit() else {
            return;
        };
        let mut part = limit.saturating_sub(self.pool.reserved());
        while part > 0 && self.held.lock().unwrap().try_grow(part).is_err() {
            part /= 2;
        }
    }
}

/// Calls something at the n-th call, and never again.
fn at(n: usize, what: impl FnOnce() + Send + 'static) -> impl FnMut() + Send + 'static {
    let (mut calls, mut what) = (0, Some(what));
    move || {
        calls += 1;
        if calls == n
            && let Some(what) = what.take()
        {
            what();
        }
    }
}

/// When the neighbour comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Build(usize),
    Probe(usize),
    /// After so many batches; nothing of the rows on disk comes out before.
    Output(usize),
}

/// One join, beside a neighbour who comes at that moment.
async fn beside_a_neighbour(subject: Subject, moment: Moment, pool: Arc<dyn MemoryPool>) {
    let around = Environment::new(pool, 64).unwrap();
    let neighbour = Neighbour::new(&around.pool);
    let when = |n: Option<usize>| {
        let neighbour = neighbour.clone();
        at(n.unwrap_or(0), move || neighbour.take())
    };
    let (build, probe, output) = match moment {
        Moment::Build(n) => (Some(n), None, None),
        Moment::Probe(n) => (None, Some(n), None),
        Moment::Output(n) => (None, None, Some(n)),
    };
    let build = subject.build.stream(when(build));
    let probe = subject.probe.stream(when(probe));
    read(&subject, &around, [build, probe], 0, when(output)).await;
    assert!(neighbour.held.lock().unwrap().size() > 0, "nobody came");
    drop(neighbour);
    around.becomes_clean().await.unwrap();
}

#[test]
fn a_neighbour_that_takes_all_the_rest_at_any_moment_is_put_up_with() {
    let _turn = turn();
    let types = [JoinType::Full, JoinType::LeftSemi, JoinType::Inner];
    let subjects = types.map(|join_type| of_bytes(3 << 20, join_type));
    let batches = subjects[0].build.rows / subjects[0].build.batch;
    let moments = [
        Moment::Build(9),
        Moment::Build(batches - 2),
        Moment::Probe(1),
        Moment::Probe(batches / 2),
        Moment::Output(3),
    ];
    for (turn, moment) in moments.into_iter().enumerate() {
        for pool in POOLS {
            for bytes in [2 << 20, 4 << 20] {
                let subject = subjects[turn % 3].clone();
                let what = format!("{moment:?} in {}", pool(bytes));
                checked(&what, beside_a_neighbour(subject, moment, pool(bytes)));
            }
        }
    }
}

/// The joins of a right-deep plan: the probe side of each is the output of the next.
struct Stack {
    builds: Vec<Input>,
    probe: Input,
}

impl Stack {
    /// So many joins with builds of so many bytes, about.
    fn new(builds: usize, bytes: usize) -> Self {
        Self {
            builds: vec![wide(Spread::Unique, bytes / 3000, true); builds],
            probe: wide(Spread::Unique, 300, false),
        }
    }

    fn start(&self, around: &Environment) -> SendableRecordBatchStream {
        let mut probe = self.probe.stream(|| {});
        for (below, build) in self.builds.iter().enumerate() {
            let key = below * 3 + KEY;
            let join = GraceHashJoin::builder(build.schema(), probe.schema())
                .with_on(vec![(KEY, key)])
                .build()
                .unwrap();
            let build = build.stream(|| {});
            probe = Box::pin(
                join.execute(build, probe, &around.context, 0, None)
                    .unwrap(),
            );
        }
        probe
    }

    /// Each probe row comes out once, with its row of each build.
    async fn check(&self, around: &Environment) {
        let mut stream = self.start(around);
        let mut keys = Vec::new();
        while let Some(batch) = stream.next().await {
            let batch = batch.unwrap_or_else(|error| panic!("{error}"));
            keys.extend(self.keys(&batch));
        }
        drop(stream);
        keys.sort_unstable();
        let all: Vec<i64> = (0..self.probe.rows)
            .filter_map(|row| row.try_into().ok())
            .collect();
        assert_eq!(keys, all);
        around.becomes_clean().await.unwrap();
    }

    fn keys(&self, batch: &RecordBatch) -> Vec<i64> {
        let column = |index| batch.column(index).as_primitive::<Int64Type>();
        let keys = column(KEY).values().to_vec();
        for (level, build) in self.builds.iter().enumerate() {
            let texts = batch.column(level * 3 + TEXT);
            for (row, key) in keys.iter().enumerate() {
                let id = build.id(usize::try_from(*key).unwrap());
                assert_eq!(column(level * 3 + KEY).value(row), *key);
                assert_eq!(column(level * 3 + ID).value(row), id);
                assert!(build.is_text_of(id, super::data::text_at(texts, row)));
            }
        }
        keys
    }
}

/// The most that a join of such a build takes while it is built.
fn size_of_build(bytes: usize) -> usize {
    let build = wide(Spread::Unique, bytes / 3000, true);
    let subject = Subject::new(build, wide(Spread::Unique, 300, false), JoinType::Inner);
    let taken = subject.run(super::measure::Pool::Unlimited, subject.expected());
    taken.unwrap().build_peak
}

#[test]
fn four_joins_on_each_other_finish_in_one_and_a_half_times_the_largest_build() {
    let _turn = turn();
    for bytes in [2 << 20, 4 << 20, 8 << 20] {
        let size = size_of_build(bytes);
        for pool in POOLS {
            let what = format!("{bytes} bytes in {}", pool(0));
            checked(&what, async move {
                let around = Environment::new(pool(size * 3 / 2), 64).unwrap();
                Stack::new(4, bytes).check(&around).await;
            });
        }
    }
}

#[test]
fn thirteen_joins_on_each_other_finish_with_builds_of_an_eighth_of_the_pool() {
    let _turn = turn();
    for bytes in [1 << 20, 4 << 20] {
        let size = size_of_build(bytes);
        for pool in POOLS {
            let what = format!("{bytes} bytes in {}", pool(0));
            checked(&what, async move {
                let around = Environment::new(pool(size * 8), 64).unwrap();
                Stack::new(13, bytes).check(&around).await;
            });
        }
    }
}
