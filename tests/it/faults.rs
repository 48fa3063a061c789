//! Holds the promise that whatever fails, fails cleanly: for each n, the n-th reservation, file
//! call or input item goes wrong, and the join gives the right answer or one error and then the
//! end; memory is back and no file is left.

use std::sync::Arc;

use datafusion_common::{DataFusionError, JoinType};
use datafusion_execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use futures::future::join_all;
use grace_hash_join::testing::faults::{INJECTED, Refusal};
use grace_hash_join::testing::run::{Setting, within_blocking_threads};
use grace_hash_join::testing::{
    Case, Environment, FaultyFiles, FaultyInput, FileFault, FilterKind, InputFault, Pressure,
    RefusingPool, Rows, Shape, Spills, Table, collect,
};

use crate::{WATCHDOG, run};

fn unlimited() -> Arc<dyn MemoryPool> {
    Arc::new(UnboundedMemoryPool::default())
}

fn input(table: &Table, fault: InputFault) -> std::pin::Pin<Box<FaultyInput>> {
    let input = FaultyInput::new(Arc::clone(&table.schema), table.batches.clone());
    Box::pin(input.with_fault(fault))
}

/// One run in a pool that refuses; says how often the pool was asked, and whether it went well.
async fn refused(
    setting: &Setting,
    expected: &Rows,
    refusal: Refusal,
    inner: Arc<dyn MemoryPool>,
) -> (usize, bool) {
    let pool = Arc::new(RefusingPool::new(inner, refusal));
    let environment = Environment::new(Arc::<RefusingPool>::clone(&pool), 7).unwrap();
    let stream = setting.start(&environment);
    let survived = Setting::survives(stream, &environment, expected).await;
    let is_right = survived.unwrap_or_else(|reason| panic!("{refusal:?}: {reason}"));
    (pool.calls(), is_right)
}

/// Walks over the calls of the pool, until one run has no such call left to refuse.
fn every_call_on_the_pool(pressures: &[Pressure], refusal: fn(usize) -> Refusal) {
    for join in Case::of_each_type() {
        for pressure in pressures {
            let case = Case {
                pressure: *pressure,
                batch_size: 7,
                ..join
            };
            let expected = case.expected().unwrap();
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                for n in 0.. {
                    let (calls, _) = refused(&setting, &expected, refusal(n), unlimited()).await;
                    if calls <= n {
                        assert!(n > 0, "the pool was never asked");
                        break;
                    }
                }
            });
        }
    }
}

#[test]
fn every_single_refusal_by_the_pool_is_survived_or_reported() {
    every_call_on_the_pool(&Pressure::FORCED, Refusal::Once);
}

#[test]
fn a_pool_that_refuses_from_some_call_on_is_survived_or_reported() {
    every_call_on_the_pool(&[Pressure::Fits, Pressure::SplitAgain], Refusal::From);
}

#[test]
fn a_pool_that_refuses_now_and_then_is_survived_or_reported() {
    for join in Case::of_each_type() {
        for shape in [Shape::Mixed, Shape::Large] {
            let case = Case { shape, ..join };
            let expected = case.expected().unwrap();
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                for every in [2, 3, 5] {
                    let inner = Arc::new(GreedyMemoryPool::new(16 << 20));
                    let refusal = Refusal::Every(every);
                    refused(&setting, &expected, refusal, inner).await;
                }
            });
        }
    }
}

/// Where spill files are, and how many threads there are to write and read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Files {
    /// In a back end that hands out streams.
    Streamed,
    /// In a directory, from which they are read as they are.
    Local { blocking_threads: usize },
}

/// One run with files of which one call fails; whether there was such a call.
fn failing(case: Case, expected: &Rows, fault: FileFault, files: Files) -> bool {
    let expected = expected.clone();
    let threads = match files {
        Files::Streamed => 8,
        Files::Local { blocking_threads } => blocking_threads,
    };
    let struck = within_blocking_threads(threads, WATCHDOG, move || async move {
        let setting = case.setting().unwrap();
        let faulty = match files {
            Files::Streamed => FaultyFiles::new(fault),
            Files::Local { .. } => FaultyFiles::local(fault),
        };
        let faulty = faulty.unwrap();
        let around = Environment::with_files(unlimited(), 7, &faulty).unwrap();
        let stream = setting.start(&around);
        let survived = Setting::survives(stream, &around, &expected).await;
        let is_right = survived.unwrap_or_else(|why| panic!("{why}"));
        assert!(is_right || faulty.struck(), "failed without a fault");
        faulty.struck()
    });
    struck.unwrap_or_else(|why| panic!("{case}, {fault:?}, {files:?}: {why}"))
}

/// Walks over the calls of one kind until several runs in a row had no such call left to fail.
fn every_call_on_files(fault: impl Fn(usize) -> FileFault + Copy + Send + 'static) {
    for (pressure, blocking_threads) in [
        (Pressure::Half, 8),
        (Pressure::All, 1),
        (Pressure::SplitAgain, 8),
        (Pressure::Chunked, 1),
    ] {
        let with_answer = |join| {
            let case = Case {
                pressure,
                batch_size: 7,
                ..join
            };
            (case, case.expected().unwrap())
        };
        // Its build rows with a NULL key come back from their run.
        let empty = Case {
            shape: Shape::EmptyProbe,
            ..Case::not_in()
        };
        let joins = Case::of_each_type().into_iter().chain([empty]);
        let cases: Vec<_> = joins.map(with_answer).collect();
        for files in [Files::Streamed, Files::Local { blocking_threads }] {
            let mut spared = 0;
            for (n, (case, expected)) in cases.iter().cycle().enumerate() {
                let struck = failing(*case, expected, fault(n), files);
                spared = if struck { 0 } else { spared + 1 };
                if spared > cases.len() {
                    assert!(n > cases.len() + 1, "no call was there to fail");
                    break;
                }
            }
        }
    }
}

#[test]
fn every_file_that_cannot_be_made_is_reported() {
    every_call_on_files(FileFault::Create);
}

#[test]
fn every_writer_that_cannot_be_opened_is_reported() {
    every_call_on_files(FileFault::OpenWriter);
}

#[test]
fn every_write_that_fails_is_reported() {
    every_call_on_files(FileFault::Write);
}

#[test]
fn every_file_that_cannot_be_finished_is_reported() {
    every_call_on_files(FileFault::Finish);
}

#[test]
fn every_file_that_cannot_be_opened_is_reported() {
    every_call_on_files(FileFault::OpenReader);
}

#[test]
fn every_read_that_fails_is_reported() {
    every_call_on_files(FileFault::Read);
}

#[test]
fn every_file_that_ends_early_is_reported() {
    every_call_on_files(FileFault::ShortRead);
}

#[test]
fn every_file_with_a_turned_bit_is_reported() {
    every_call_on_files(FileFault::DamagedRead);
}

#[test]
fn a_full_disk_is_reported_at_every_size() {
    for join_type in [JoinType::Full, JoinType::RightSemi, JoinType::LeftAnti] {
        let case = Case {
            pressure: Pressure::All,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let setting = case.setting().unwrap();
            let mut is_right = false;
            for quota in (0..).map(|n| n * 500) {
                let environment = case.environment().unwrap();
                environment.disk.set_max_temp_directory_size(quota).unwrap();
                let stream = setting.start(&environment);
                is_right = Setting::survives(stream, &environment, &expected)
                    .await
                    .unwrap();
                assert!(!is_right || quota > 0, "a disk of no bytes was enough");
                if is_right {
                    break;
                }
            }
            assert!(is_right);
        });
    }
}

#[test]
fn every_input_that_fails_ends_the_join_with_its_error() {
    for join in Case::of_each_type() {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                batch_size: 7,
                ..join
            };
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                // Three build batches, four probe batches, and the end of each.
                for item in 0..=3 {
                    for in_build in [true, false] {
                        let fault = |here| {
                            if here {
                                InputFault::FailAt(item)
                            } else {
                                InputFault::Never
                            }
                        };
                        let environment = case.environment().unwrap();
                        let build = input(&setting.build, fault(in_build));
                        let probe = input(&setting.probe, fault(!in_build));
                        let stream = setting.start_with(&environment, build, probe).unwrap();
                        let outcome = collect(stream).await.unwrap();
                        let error = outcome.end.expect_err("an input failed").to_string();
                        assert!(error.contains(INJECTED), "{error}");
                        drop(outcome.batches);
                        environment.becomes_clean().await.unwrap();
                    }
                }
            });
        }
    }
}

#[test]
fn inputs_that_dawdle_change_nothing() {
    for join in Case::of_each_type() {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                shape: Shape::EmptyBatches,
                ..join
            };
            let expected = case.expected().unwrap();
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                let environment = case.environment().unwrap();
                let build = input(&setting.build, InputFault::Dawdle(2));
                let probe = input(&setting.probe, InputFault::Dawdle(1));
                let stream = setting.start_with(&environment, build, probe);
                assert!(
                    Setting::survives(stream, &environment, &expected)
                        .await
                        .unwrap()
                );
            });
        }
    }
}

#[test]
fn a_filter_that_fails_ends_the_join_with_its_error() {
    for join in Case::of_each_type() {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                filter: FilterKind::Failing,
                ..join
            };
            assert!(case.expected().is_err());
            run(&case, move || async move {
                let environment = case.environment().unwrap();
                let stream = case.setting().unwrap().start(&environment).unwrap();
                let outcome = collect(stream).await.unwrap();
                let error = outcome.end.expect_err("the filter failed");
                assert!(matches!(error, DataFusionError::Execution(_)), "{error}");
                environment.becomes_clean().await.unwrap();
            });
        }
    }
}

/// The threads of a runtime are few, and those that block may be one: everything that is written and
/// read takes turns.
#[test]
fn joins_beside_each_other_finish_with_one_thread_for_blocking_tasks() {
    for pressure in [Pressure::All, Pressure::SplitAgain, Pressure::Chunked] {
        let case = Case {
            pressure,
            shape: Shape::Large,
            ..Case::new(JoinType::Full)
        };
        let case = match pressure {
            // Of five rows each, they would be many chunks.
            Pressure::Chunked => Case {
                shape: Shape::Mixed,
                ..case
            },
            _ => case,
        };
        let expected = case.expected().unwrap();
        let finished = within_blocking_threads(1, WATCHDOG, move || async move {
            let setting = case.setting().unwrap();
            let around = case.environment().unwrap();
            let join = async || {
                let stream = setting.start(&around).unwrap();
                let outcome = collect(stream).await.unwrap();
                outcome.end.as_ref().unwrap();
                outcome.is_right(&expected, &around).unwrap();
                outcome.spilled_as(Spills::Must).unwrap();
            };
            join_all((0..6).map(|_| join())).await;
            around.becomes_clean().await.unwrap();
        });
        finished.unwrap_or_else(|why| panic!("{case}: {why}"));
    }
}
