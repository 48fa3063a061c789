//! A session that runs statements as DataFusion's own runner does, and counts the joins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_sqllogictest::{
    DFColumnType, DFOutput, DFSqlLogicTestError, convert_batches, convert_schema_to_types,
};
use grace_hash_join::GraceHashJoinExec;
use sqllogictest::{AsyncDB, DBOutput};

use crate::corpus;
use crate::runs::Run;

/// What was counted in one run.
#[derive(Default)]
pub struct Tally {
    records: AtomicUsize,
    replaced: AtomicUsize,
    kept: AtomicUsize,
    spilling: AtomicUsize,
}

impl Tally {
    /// Records that were run.
    pub fn records(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// Joins of ours in plans that were executed.
    pub fn replaced(&self) -> usize {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Hash joins in plans that were executed with the rule on.
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Joins of ours that spilled.
    pub fn spilling(&self) -> usize {
        self.spilling.load(Ordering::Relaxed)
    }

    pub fn count_record(&self) {
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, plan: &Arc<dyn ExecutionPlan>) -> datafusion::error::Result<()> {
        plan.apply(|node| {
            if node.is::<HashJoinExec>() {
                self.kept.fetch_add(1, Ordering::Relaxed);
            }
            if node.is::<GraceHashJoinExec>() {
                self.replaced.fetch_add(1, Ordering::Relaxed);
                let spilled = node.metrics().and_then(|m| m.spill_count());
                if spilled.is_some_and(|n| n > 0) {
                    self.spilling.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    }
}

/// A session of one test file in one run.
pub struct Engine {
    ctx: SessionContext,
    run: &'static Run,
    tally: Arc<Tally>,
}

impl Engine {
    pub fn new(ctx: SessionContext, run: &'static Run, tally: Arc<Tally>) -> Self {
        Self { ctx, run, tally }
    }

    /// The plans in the test files are DataFusion's: those are made without the rule.
    fn set_enabled(&self, is_enabled: bool) -> Result<(), DFSqlLogicTestError> {
        let state = self.ctx.state_ref();
        let mut state = state.write();
        let options = state.config_mut().options_mut();
        options.set("grace_hash_join.enabled", &is_enabled.to_string())?;
        Ok(())
    }
}

/// Whether a statement shows a plan.
pub fn is_explain(sql: &str) -> bool {
    let word = sql.trim_start().get(.."explain".len());
    word.is_some_and(|w| w.eq_ignore_ascii_case("explain"))
}

#[async_trait]
impl AsyncDB for Engine {
    type Error = DFSqlLogicTestError;
    type ColumnType = DFColumnType;

    async fn run(&mut self, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
        let Some(sql) = self.run.instead(sql) else {
            return Ok(DBOutput::StatementComplete(0));
        };
        let sql = sql.as_ref();
        self.set_enabled(!is_explain(sql))?;
        let frame = self.ctx.sql(sql).await?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        let schema = plan.schema();
        let batches = collect(Arc::clone(&plan), task).await;
        if !is_explain(sql) {
            self.tally.count(&plan)?;
        }
        let types = convert_schema_to_types(schema.fields());
        let mut rows = convert_batches(&schema, batches?, false)?;
        if rows.is_empty() && types.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        for cell in rows.iter_mut().flatten() {
            corpus::hide_root(cell);
        }
        Ok(DBOutput::Rows { types, rows })
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "DataFusion"
    }

    async fn sleep(duration: std::time::Duration) {
        tokio::time::sleep(duration).await;
    }
}
