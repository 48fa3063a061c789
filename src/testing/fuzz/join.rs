//! The operator against the oracle.

use std::fmt;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use datafusion_common::DataFusionError;

use super::super::data::Table;
use super::super::faults::{FaultyInput, FileFault, InputFault};
use super::super::oracle::Rows;
use super::super::run::{Outcome, Setting, Spills, collect};
use super::{Around, Engine, Pool, Query, Target, paste};
use crate::SpillPolicy;

/// A join, its surroundings, and how its inputs dawdle.
#[derive(Clone, PartialEq, Eq)]
pub struct Join {
    /// What is asked.
    pub query: Query,
    /// How it is worked out.
    pub engine: Engine,
    /// With which memory.
    pub pool: Pool,
    /// Polls that come to nothing before each batch, of the build and of the probe input.
    pub dawdle: (usize, usize),
}

impl<'a> Arbitrary<'a> for Join {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self {
            engine: u.arbitrary()?,
            pool: u.arbitrary()?,
            dawdle: (u.int_in_range(0..=2)?, u.int_in_range(0..=2)?),
            query: u.arbitrary()?,
        })
    }
}

impl Target for Join {
    const NAME: &'static str = "join";

    async fn check(&self) -> Result<(), String> {
        let told = |error: DataFusionError| error.to_string();
        let setting = self.query.setting(&self.engine).map_err(told)?;
        let expected = self.query.expected(&setting.build, &setting.probe);
        let files = (self.engine.chunk, FileFault::Never);
        let around = Around::new(self.pool.make(), self.engine.batch_size, files)?;
        let build = input(&setting.build, InputFault::Dawdle(self.dawdle.0));
        let probe = input(&setting.probe, InputFault::Dawdle(self.dawdle.1));
        let stream = setting.start_with(&around.environment, build, probe);
        let outcome = collect(stream.map_err(told)?).await?;
        match (&outcome.end, expected) {
            (Ok(()), Ok(expected)) => self.is_right(&outcome, &expected, &setting, &around)?,
            // Whether a failing pair is looked at may depend on what was found before it.
            (_, Err(_)) => {}
            (Err(error), Ok(_)) => self.may_give_up(error)?,
        }
        drop(outcome);
        around.becomes_clean().await
    }
}

impl Join {
    fn is_right(
        &self,
        outcome: &Outcome,
        expected: &Rows,
        setting: &Setting,
        around: &Around,
    ) -> Result<(), String> {
        let expected = self.query.limited(expected, outcome)?;
        if self.pool.suffices(self.query.largest_batch()) {
            outcome.keeps_its_word(&expected, &around.environment)?;
        } else {
            // The batch in hand is charged, not asked for.
            outcome.is_right(&expected, &around.environment)?;
        }
        outcome.spilled_as(self.expects_spill())?;
        let stats = outcome.stats;
        let rows = (setting.build.rows() as u64, setting.probe.rows() as u64);
        // A join may end early, but never makes rows up.
        if stats.build_rows > rows.0 || stats.probe_rows > rows.1 {
            return Err(format!(
                "{rows:?} rows came in, but the counters say {stats:?}"
            ));
        }
        Ok(())
    }

    fn may_give_up(&self, error: &DataFusionError) -> Result<(), String> {
        let is_exhausted = matches!(error, DataFusionError::ResourcesExhausted(_));
        if is_exhausted && !self.pool.suffices(self.query.largest_batch()) {
            Ok(())
        } else {
            Err(format!("ended with {error}"))
        }
    }

    fn expects_spill(&self) -> Spills {
        let build = &self.query.build;
        let is_forced = matches!(
            self.engine.spill,
            SpillPolicy::All | SpillPolicy::Split(_) | SpillPolicy::Chunks(_)
        );
        if self.engine.spill == SpillPolicy::Pressure && self.pool == Pool::Unlimited {
            Spills::MustNot
        } else if is_forced && build.rows > 0 && build.null_percent == 0 && self.reads_all() {
            Spills::Must
        } else {
            Spills::May
        }
    }

    /// Whether nothing lets the join end early.
    fn reads_all(&self) -> bool {
        self.query.limit.is_none() && self.query.probe.rows > 0
    }
}

/// An input over a table's batches.
pub(super) fn input(table: &Table, fault: InputFault) -> std::pin::Pin<Box<FaultyInput>> {
    let input = FaultyInput::new(Arc::clone(&table.schema), table.batches.clone());
    Box::pin(input.with_fault(fault))
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            query,
            engine,
            pool,
            dawdle,
        } = self;
        paste::test(
            f,
            Self::NAME,
            format_args!(
                "Join {{
        query: {query:?},
        engine: {engine:?},
        pool: Pool::{pool:?},
        dawdle: {dawdle:?},
    }}"
            ),
        )
    }
}
