//! The operator under refusals, failures and early drop: the right answer, or one error and then
//! the end; nothing left behind.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use arbitrary::{Arbitrary, Result, Unstructured};
use datafusion_common::{DataFusionError, Result as JoinResult};
use futures::StreamExt;
use futures::future::poll_fn;

use super::super::data::Table;
use super::super::faults::{FileFault, INJECTED, InputFault, Refusal, RefusingPool};
use super::super::oracle::Rows;
use super::super::run::{Outcome, collect};
use super::choices::Choices;
use super::join::input;
use super::{Around, Engine, Pool, Query, Target, paste};
use crate::GraceHashJoinStream;

/// When the stream is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// After its end.
    AtEnd,
    /// After so many batches.
    AfterBatches(usize),
    /// After so many polls, ready or not.
    AfterPolls(usize),
}

/// A join, and what goes wrong around it.
#[derive(Clone, PartialEq, Eq)]
pub struct Faults {
    /// What is asked.
    pub query: Query,
    /// How it is worked out.
    pub engine: Engine,
    /// With which memory.
    pub pool: Pool,
    /// Which reservations are refused all the same.
    pub refusal: Refusal,
    /// What goes wrong with a file.
    pub file: FileFault,
    /// What goes wrong with the build input.
    pub build: InputFault,
    /// What goes wrong with the probe input.
    pub probe: InputFault,
    /// When the stream is dropped.
    pub drop: Drop,
}

impl<'a> Arbitrary<'a> for Faults {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let engine = u.arbitrary()?;
        let pool = u.arbitrary()?;
        let mut choices = Choices(u);
        let drop = match choices.size(0..=3)? {
            0 | 1 => Drop::AtEnd,
            2 => Drop::AfterBatches(choices.size(0..=6)?),
            _ => Drop::AfterPolls(choices.size(0..=60)?),
        };
        // An input that never comes would never end.
        let may_stall = matches!(drop, Drop::AfterPolls(_));
        Ok(Self {
            engine,
            pool,
            refusal: match choices.size(0..=4)? {
                0 | 1 => Refusal::Never,
                2 => Refusal::Once(choices.size(0..=80)?),
                3 => Refusal::From(choices.size(0..=80)?),
                _ => Refusal::Every(choices.size(1..=9)?),
            },
            file: match choices.size(0..=11)? {
                0..=3 => FileFault::Never,
                4 => FileFault::Create(choices.size(0..=40)?),
                5 => FileFault::OpenWriter(choices.size(0..=40)?),
                6 => FileFault::Write(choices.size(0..=255)?),
                7 => FileFault::Finish(choices.size(0..=40)?),
                8 => FileFault::OpenReader(choices.size(0..=40)?),
                9 => FileFault::Read(choices.size(0..=255)?),
                10 => FileFault::ShortRead(choices.size(0..=255)?),
                _ => FileFault::DamagedRead(choices.size(0..=255)?),
            },
            build: input_fault(&mut choices, may_stall)?,
            probe: input_fault(&mut choices, may_stall)?,
            drop,
            query: u.arbitrary()?,
        })
    }
}

fn input_fault(choices: &mut Choices, may_stall: bool) -> Result<InputFault> {
    Ok(match choices.size(0..=7)? {
        6 => InputFault::FailAt(choices.size(0..=12)?),
        7 if may_stall => InputFault::StallAt(choices.size(0..=12)?),
        5 => InputFault::Dawdle(choices.size(0..=2)?),
        _ => InputFault::Never,
    })
}

impl Target for Faults {
    const NAME: &'static str = "faults";

    async fn check(&self) -> Result<(), String> {
        let told = |error: DataFusionError| error.to_string();
        let setting = self.query.setting(&self.engine).map_err(told)?;
        let pool = Arc::new(RefusingPool::new(self.pool.make(), self.refusal));
        let files = (self.engine.chunk, self.file);
        let around = Around::new(pool, self.engine.batch_size, files)?;
        let build = input(&setting.build, self.build);
        let probe = input(&setting.probe, self.probe);
        let stream = setting.start_with(&around.environment, build, probe);
        let stream = stream.map_err(told)?;
        match self.drop {
            Drop::AtEnd => {
                let outcome = collect(stream).await?;
                let expected = self.query.expected(&setting.build, &setting.probe);
                self.is_right_or_told(&outcome, &expected, &setting.build, &around)?;
            }
            Drop::AfterBatches(batches) => drop_after_batches(stream, batches).await,
            Drop::AfterPolls(polls) => drop_after_polls(stream, polls).await,
        }
        around.becomes_clean().await
    }
}

async fn drop_after_batches(mut stream: GraceHashJoinStream, batches: usize) {
    let mut left = batches;
    while left > 0 && matches!(stream.next().await, Some(Ok(_))) {
        left -= 1;
    }
}

async fn drop_after_polls(stream: GraceHashJoinStream, polls: usize) {
    let mut stream = pin!(stream);
    for _ in 0..polls {
        let ended = poll_fn(|context| {
            Poll::Ready(match stream.as_mut().poll_next_unpin(context) {
                Poll::Ready(item) => !matches!(item, Some(Ok(_))),
                Poll::Pending => false,
            })
        });
        if ended.await {
            return;
        }
        // Lets blocking tasks hand in what they have done.
        tokio::task::yield_now().await;
    }
}

impl Faults {
    fn is_right_or_told(
        &self,
        outcome: &Outcome,
        expected: &JoinResult<Rows>,
        build: &Table,
        around: &Around,
    ) -> Result<(), String> {
        match (&outcome.end, expected) {
            (Ok(()), Ok(expected)) => {
                self.may_not_notice(outcome, build)?;
                let expected = self.query.limited(expected, outcome)?;
                outcome.is_right(&expected, &around.environment)
            }
            (Err(error), Ok(_)) => self.has_a_cause(error, around),
            (_, Err(_)) => Ok(()),
        }
    }

    /// An input's failure may pass unnoticed only where the input need not be read to its end: with
    /// a limit, or on the probe side where no probe row can change a thing.
    fn may_not_notice(&self, outcome: &Outcome, build: &Table) -> Result<(), String> {
        let failed = |fault: InputFault, batches: u64| match fault {
            InputFault::FailAt(n) => n as u64 <= batches,
            _ => false,
        };
        let stats = &outcome.stats;
        let is_read = self.query.needs_probe(build);
        let failed = failed(self.build, stats.build_batches)
            || failed(self.probe, stats.probe_batches) && is_read;
        if failed && self.query.limit.is_none() {
            return Err(format!("an input failed, and nothing said so: {stats:?}"));
        }
        Ok(())
    }

    /// An error has a cause that we made.
    fn has_a_cause(&self, error: &DataFusionError, around: &Around) -> Result<(), String> {
        let text = error.to_string();
        let is_exhausted = matches!(error, DataFusionError::ResourcesExhausted(_))
            && !self.pool.suffices(self.query.largest_batch());
        if is_exhausted || text.contains(INJECTED) || around.files.struck() {
            Ok(())
        } else {
            Err(format!("ended without a fault: {text}"))
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            query,
            engine,
            pool,
            refusal,
            file,
            build,
            probe,
            drop,
        } = self;
        paste::test(
            f,
            Self::NAME,
            format_args!(
                "Faults {{
        query: {query:?},
        engine: {engine:?},
        pool: Pool::{pool:?},
        refusal: Refusal::{refusal:?},
        file: FileFault::{file:?},
        build: InputFault::{build:?},
        probe: InputFault::{probe:?},
        drop: Drop::{drop:?},
    }}"
            ),
        )
    }
}
