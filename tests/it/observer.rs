//! Holds the promise that a [`BuildObserver`] sees every build row's key, spilled or not, and that
//! nothing of the probe side is asked for before it had its say.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, JoinType, Result};
use datafusion_execution::RecordBatchStream;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use grace_hash_join::BuildObserver;
use grace_hash_join::testing::{
    Case, FaultyInput, InputFault, KeyKind, Pressure, Shape, Table, collect,
};

use crate::run;

/// What was seen, shared with the test.
#[derive(Debug, Default)]
struct Seen {
    rows: AtomicUsize,
    columns: AtomicUsize,
    built: AtomicBool,
    dropped: AtomicBool,
}

struct Observer {
    seen: Arc<Seen>,
    fails: bool,
    tells: bool,
}

impl BuildObserver for Observer {
    fn keys(&mut self, keys: &[ArrayRef]) -> Result<()> {
        if self.fails {
            return Err(DataFusionError::Execution("the observer fails".to_string()));
        }
        self.seen.columns.fetch_max(keys.len(), SeqCst);
        self.seen.rows.fetch_add(keys[0].len(), SeqCst);
        Ok(())
    }

    fn built(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        let tells = self.tells;
        async move {
            tokio::task::yield_now().await;
            self.seen.built.store(true, SeqCst);
            if tells {
                Err(DataFusionError::Execution("the observer fails".to_string()))
            } else {
                Ok(())
            }
        }
        .boxed()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.seen.dropped.store(true, SeqCst);
    }
}

/// A probe input that must not be polled before the observer was told.
struct Probe {
    input: FaultyInput,
    seen: Arc<Seen>,
}

impl Stream for Probe {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        assert!(
            self.seen.built.load(SeqCst),
            "the probe side was polled too early"
        );
        Pin::new(&mut self.input).poll_next(cx)
    }
}

impl RecordBatchStream for Probe {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

fn input(table: &Table) -> FaultyInput {
    FaultyInput::new(Arc::clone(&table.schema), table.batches.clone())
}

/// One observed run; gives what was seen and how it ended.
async fn observe(
    case: Case,
    fault: InputFault,
    fails: bool,
    tells: bool,
) -> (Arc<Seen>, Result<()>) {
    let seen = Arc::new(Seen::default());
    let observer = Observer {
        seen: Arc::clone(&seen),
        fails,
        tells,
    };
    let setting = case.setting().unwrap();
    let environment = case.environment().unwrap();
    let build = Box::pin(input(&setting.build).with_fault(fault));
    let probe = Box::pin(Probe {
        input: input(&setting.probe),
        seen: Arc::clone(&seen),
    });
    let observer = Some(Box::new(observer) as Box<dyn BuildObserver>);
    let stream = setting
        .join
        .execute(build, probe, &environment.context, 0, observer)
        .unwrap();
    let outcome = collect(stream).await.unwrap();
    environment.becomes_clean().await.unwrap();
    (seen, outcome.end)
}

fn cases() -> impl Iterator<Item = Case> {
    Pressure::FORCED.into_iter().flat_map(|pressure| {
        [KeyKind::Int64, KeyKind::Pair].map(|key| Case {
            pressure,
            key,
            shape: Shape::Slices,
            ..Case::new(JoinType::Inner)
        })
    })
}

#[test]
fn an_observer_sees_each_build_key_and_is_told_before_the_probe_side_is_asked() {
    for case in cases() {
        let (seen, end) = run(&case, move || {
            observe(case, InputFault::Never, false, false)
        });
        end.unwrap();
        assert_eq!(seen.rows.load(SeqCst), 51, "{case}");
        assert_eq!(
            seen.columns.load(SeqCst),
            case.key.data_types().unwrap().len(),
            "{case}"
        );
        assert!(seen.built.load(SeqCst), "{case}");
    }
}

#[test]
fn an_observer_is_dropped_untold_when_the_build_side_fails() {
    for case in cases() {
        let (seen, end) = run(&case, move || {
            observe(case, InputFault::FailAt(1), false, false)
        });
        assert!(end.is_err(), "{case}");
        assert!(!seen.built.load(SeqCst), "{case}");
        assert!(seen.dropped.load(SeqCst), "{case}");
    }
}

#[test]
fn an_observer_that_fails_ends_the_join_with_its_error() {
    for case in cases() {
        for (fails, tells) in [(true, false), (false, true)] {
            let (_, end) = run(&case, move || {
                observe(case, InputFault::Never, fails, tells)
            });
            let error = end.expect_err("the observer failed").to_string();
            assert!(error.contains("the observer fails"), "{case}: {error}");
        }
    }
}
