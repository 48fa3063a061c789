//! Holds the promise that dropping the stream is cancelling: in every phase, after any number of
//! batches, memory and files go with it, and work that yields no rows can be stopped too.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use datafusion_common::JoinType;
use futures::StreamExt;
use grace_hash_join::GraceHashJoinStream;
use grace_hash_join::testing::run::within_blocking_threads;
use grace_hash_join::testing::{
    Case, Environment, FaultyInput, FilterKind, InputFault, Layout, Pressure, Shape, Table,
};

use crate::{WATCHDOG, run};

fn input(table: &Table, fault: InputFault) -> std::pin::Pin<Box<FaultyInput>> {
    let input = FaultyInput::new(Arc::clone(&table.schema), table.batches.clone());
    Box::pin(input.with_fault(fault))
}

#[test]
fn a_stream_dropped_after_any_number_of_batches_leaves_nothing() {
    for join in Case::of_each_type() {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                batch_size: 5,
                ..join
            };
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                for batches in 0.. {
                    let environment = case.environment().unwrap();
                    let mut stream = setting.start(&environment).unwrap();
                    let mut got = 0;
                    while got < batches && stream.next().await.is_some() {
                        got += 1;
                    }
                    drop(stream);
                    environment.becomes_clean().await.unwrap();
                    if got < batches {
                        break;
                    }
                }
            });
        }
    }
}

/// Polls that come to nothing count too: a write or a read is in flight then.
#[test]
fn a_stream_dropped_after_any_number_of_polls_leaves_nothing() {
    for (turn, join) in Case::of_each_type().into_iter().enumerate() {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                batch_size: 20,
                ..join
            };
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                // Waiting for the disk takes any number of polls.
                for polls in (turn..120).step_by(11) {
                    let environment = case.environment().unwrap();
                    let mut stream = setting.start(&environment).unwrap();
                    let mut context = Context::from_waker(Waker::noop());
                    let mut has_ended = false;
                    for _ in 0..polls {
                        has_ended =
                            matches!(stream.poll_next_unpin(&mut context), Poll::Ready(None));
                        if has_ended {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    drop(stream);
                    environment.becomes_clean().await.unwrap();
                    if has_ended {
                        break;
                    }
                }
            });
        }
    }
}

/// Polls a stream when it asks for it, so often, or until it ends; whether it did.
async fn polled(stream: &mut GraceHashJoinStream, most: usize) -> bool {
    let mut polls = 0;
    poll_fn(|context| {
        if polls == most {
            return Poll::Ready(false);
        }
        polls += 1;
        match stream.poll_next_unpin(context) {
            Poll::Ready(None) => Poll::Ready(true),
            Poll::Ready(Some(batch)) => {
                batch.unwrap();
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Of every run, from its first poll to its last, in a runtime with one thread for blocking tasks too.
#[test]
fn a_stream_dropped_at_any_poll_that_it_asked_for_leaves_nothing() {
    for (turn, join) in Case::of_each_type().into_iter().enumerate() {
        for (place, pressure) in Pressure::FORCED.into_iter().enumerate() {
            let case = Case {
                pressure,
                batch_size: 20,
                ..join
            };
            let threads = if (turn + place) % 2 == 0 { 1 } else { 8 };
            let dropped = within_blocking_threads(threads, WATCHDOG, move || async move {
                let setting = case.setting().unwrap();
                for polls in (turn..).step_by(11) {
                    let environment = case.environment().unwrap();
                    let mut stream = setting.start(&environment).unwrap();
                    let has_ended = polled(&mut stream, polls).await;
                    drop(stream);
                    environment.becomes_clean().await.unwrap();
                    if has_ended {
                        return;
                    }
                }
            });
            dropped.unwrap_or_else(|why| panic!("{case}: {why}"));
        }
    }
}

#[test]
fn a_stream_dropped_while_it_waits_for_an_input_leaves_nothing() {
    for (turn, join) in Case::of_each_type().into_iter().enumerate() {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                batch_size: 5,
                shape: Shape::EmptyBatches,
                ..join
            };
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                // Six build items, thirteen probe items, each with its end.
                for item in (turn % 3..14).step_by(3) {
                    for in_build in [true, false] {
                        let fault = InputFault::StallAt(item);
                        let (build, probe) = if in_build {
                            (fault, InputFault::Never)
                        } else {
                            (InputFault::Never, fault)
                        };
                        let environment = case.environment().unwrap();
                        let build = input(&setting.build, build);
                        let probe = input(&setting.probe, probe);
                        let mut stream = setting.start_with(&environment, build, probe).unwrap();
                        let wait = Duration::from_millis(10);
                        while let Ok(Some(_)) = tokio::time::timeout(wait, stream.next()).await {}
                        drop(stream);
                        environment.becomes_clean().await.unwrap();
                    }
                }
            });
        }
    }
}

#[test]
fn a_stream_under_memory_pressure_leaves_nothing_when_dropped() {
    for shape in [Shape::WideOneKey, Shape::Large] {
        for join_type in [JoinType::Full, JoinType::RightSemi, JoinType::LeftMark] {
            let case = Case {
                pressure: Pressure::SmallPool,
                shape,
                key: shape.key(),
                batch_size: 20,
                ..Case::new(join_type)
            };
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                for batches in [0, 1, 2, 5, 20] {
                    let environment = case.environment().unwrap();
                    let mut stream = setting.start(&environment).unwrap();
                    for _ in 0..batches {
                        stream.next().await;
                    }
                    drop(stream);
                    environment.becomes_clean().await.unwrap();
                }
            });
        }
    }
}

#[test]
fn a_stream_that_is_never_polled_reserves_nothing() {
    let case = Case::new(JoinType::Full);
    run(&case, move || async move {
        let setting = case.setting().unwrap();
        let environment = case.environment().unwrap();
        let stream = setting.start(&environment).unwrap();
        assert_eq!(environment.pool.reserved(), 0);
        drop(stream);
        environment.becomes_clean().await.unwrap();
    });
}

/// A filter that rejects each of nine million pairs: no row comes, and yet the task must yield.
#[test]
fn a_join_that_finds_nothing_can_be_stopped_and_lets_others_run() {
    for pressure in [Pressure::Fits, Pressure::All] {
        let case = Case {
            pressure,
            filter: FilterKind::AlwaysFalse,
            ..Case::new(JoinType::Inner)
        };
        run(&case, move || async move {
            let (mut build, mut probe) = Shape::OneKey.specs();
            (build.rows, probe.rows) = (3000, 3000);
            (build.layout, probe.layout) = (Layout::Batches(3000), Layout::Batches(3000));
            let mut setting = case.setting().unwrap();
            setting.build = build.table(case.key, 1).unwrap();
            setting.probe = probe.table(case.key, 2).unwrap();
            let environment = Environment::unlimited(8192).unwrap();
            let mut stream = setting.start(&environment).unwrap();
            let other = async {
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let start = Instant::now();
            tokio::select! {
                _ = stream.next() => {}
                () = other => {}
            }
            assert!(
                start.elapsed() < Duration::from_secs(1),
                "{:?}",
                start.elapsed()
            );
            let start = Instant::now();
            drop(stream);
            assert!(
                start.elapsed() < Duration::from_millis(200),
                "{:?}",
                start.elapsed()
            );
            environment.becomes_clean().await.unwrap();
        });
    }
}
