//! What the scans of a plan read and skipped.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use serde_json::{Value, json};

/// Sums over the scans of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scans {
    /// Rows that came out.
    pub(crate) rows: u64,
    /// Row groups that were not read, for whatever reason.
    pub(crate) groups_skipped: u64,
    /// Rows in pages that were not read.
    pub(crate) page_rows_skipped: u64,
    /// Rows that a filter inside the scan dropped.
    pub(crate) rows_filtered: u64,
}

impl Scans {
    /// The sums over `plan`, once it ran.
    pub(crate) fn of(plan: &dyn ExecutionPlan) -> Self {
        let mut scans = Self::default();
        scans.add(plan);
        scans
    }

    fn add(&mut self, plan: &dyn ExecutionPlan) {
        let metrics = plan.metrics().filter(|_| plan.name() == "DataSourceExec");
        for metric in metrics.iter().flat_map(MetricsSet::iter) {
            let value = metric.value();
            let number = match value {
                MetricValue::PruningMetrics {
                    pruning_metrics, ..
                } => pruning_metrics.pruned(),
                other => other.as_usize(),
            } as u64;
            match value.name() {
                "output_rows" => self.rows += number,
                "row_groups_pruned_statistics"
                | "row_groups_pruned_bloom_filter"
                | "row_groups_pruned_dynamic_filter" => self.groups_skipped += number,
                "page_index_rows_pruned" => self.page_rows_skipped += number,
                "pushdown_rows_pruned" => self.rows_filtered += number,
                _ => {}
            }
        }
        for child in plan.children() {
            self.add(child.as_ref());
        }
    }

    /// As a worker prints it.
    pub(crate) fn to_json(self) -> Value {
        json!([
            self.rows,
            self.groups_skipped,
            self.page_rows_skipped,
            self.rows_filtered
        ])
    }

    /// As the supervisor reads it.
    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        Some(Self {
            rows: json[0].as_u64()?,
            groups_skipped: json[1].as_u64()?,
            page_rows_skipped: json[2].as_u64()?,
            rows_filtered: json[3].as_u64()?,
        })
    }
}
