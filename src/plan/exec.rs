//! The plan node.
//!
//! Job: be to a DataFusion plan what `HashJoinExec` is, but for its name, its memory and its order.
//! A `HashJoinExec` with the same inputs, the *template*, does all the planning: inputs, keys,
//! filter, projection, fetch and dynamic filter live in it alone and are read from it, so that the
//! two cannot drift apart. The template never executes.
//!
//! Not its job: joining ([`crate::GraceHashJoin`]), deciding where (`rule`).
//!
//! Invariants:
//!
//! * No order of the probe side is promised, neither in [`ExecutionPlan::maintains_input_order`]
//!   nor in the equivalence properties: spilled buckets come out after resident ones.
//! * `CollectLeft` is one partition on both sides, required of both, so that no later rule can
//!   widen the probe side: one partition's join sees all build rows and all probe rows. A null-aware
//!   join (`NOT IN`), whose answer depends on all probe rows, is nothing else.
//! * `downcast_delegate` stays `None`: rules that look for a `HashJoinExec` must not find, and
//!   rebuild, the template.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::TreeNodeRecursion;
use datafusion_common::{JoinType, Result, Statistics};
use datafusion_execution::{SendableRecordBatchStream, TaskContext};
use datafusion_physical_expr::{Distribution, PhysicalExpr};
use datafusion_physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion_physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion_physical_plan::metrics::MetricsSet;
use datafusion_physical_plan::projection::ProjectionExec;
use datafusion_physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion_physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, ReplaceChildrenOptions,
};

use super::display;
use super::dynamic_filter::{Observer, SharedFilter};
use super::expr::{ExprFilter, ExprKeys};
use super::metrics::{MeteredStream, NodeMetrics};
use crate::config::GraceHashJoinConfig;
use crate::error;
use crate::join::{BuildObserver, GraceHashJoin, ResidualFilter};

/// A hash join that spills: takes the place of a `HashJoinExec`, and finishes when the build side
/// does not fit in memory.
///
/// It reads the left input (build) into memory, as far as the memory pool allows, and streams the
/// right one (probe) past it; see [`crate::GraceHashJoin`] for how. Its output is not in probe
/// order.
///
/// Made by [`SpillableJoinSelection`](crate::SpillableJoinSelection), or from a `HashJoinExec` by
/// [`Self::try_from_hash_join`].
#[derive(Debug)]
pub struct GraceHashJoinExec {
    template: HashJoinExec,
    config: GraceHashJoinConfig,
    properties: Arc<PlanProperties>,
    metrics: NodeMetrics,
    filter: Option<Arc<SharedFilter>>,
}

impl GraceHashJoinExec {
    /// The same join as `join`, with everything that it carries: projection, fetch, filter, null
    /// equality, null-awareness and dynamic filter.
    ///
    /// # Errors
    /// A plan error if the join's mode is neither `Partitioned` nor `CollectLeft` with one partition
    /// on both sides, if it is null-aware (`NOT IN`) and `Partitioned`, if a key is volatile, or if
    /// a key's type cannot be hashed and compared.
    pub fn try_from_hash_join(join: &HashJoinExec) -> Result<Self> {
        if join.null_aware && join.mode == PartitionMode::Partitioned {
            return Err(error::node_null_aware());
        }
        let (build, probe) = partition_counts(join);
        let is_convertible = match join.mode {
            PartitionMode::Partitioned => true,
            PartitionMode::CollectLeft => build == 1 && probe == 1,
            PartitionMode::Auto => false,
        };
        if !is_convertible {
            let mode = format!("{:?}", join.mode);
            return Err(error::node_mode(&mode, build, probe));
        }
        let node = Self::from_template(join.builder().build()?, &GraceHashJoinConfig::default())?;
        node.join()?;
        Ok(node)
    }

    /// Puts a node in the place of the `HashJoinExec` in what `HashJoinExec::swap_inputs` gave: the
    /// join itself, or one projection above it.
    pub(crate) fn replace_in(
        plan: &Arc<dyn ExecutionPlan>,
        config: &GraceHashJoinConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        in_place_of_the_join(plan, &|join| {
            Self::try_from_hash_join(join)?.with_config(config)
        })
    }

    /// This node with another configuration. The number of partitions in it is the node's own,
    /// whatever `config` says.
    ///
    /// # Errors
    /// Never for a `config` made by its builder.
    pub fn with_config(mut self, config: &GraceHashJoinConfig) -> Result<Self> {
        self.config = for_partitions(config, &self.template)?;
        Ok(self)
    }

    /// The configuration, resolved when the node was made.
    #[must_use]
    pub fn config(&self) -> &GraceHashJoinConfig {
        &self.config
    }

    /// How the sides are joined.
    pub(crate) fn join_type(&self) -> JoinType {
        self.template.join_type
    }

    /// The hash join that plans for this node.
    #[cfg(feature = "proto")]
    pub(crate) fn template(&self) -> &HashJoinExec {
        &self.template
    }

    fn from_template(template: HashJoinExec, config: &GraceHashJoinConfig) -> Result<Self> {
        Ok(Self {
            config: for_partitions(config, &template)?,
            properties: unordered(template.properties()),
            metrics: NodeMetrics::default(),
            filter: SharedFilter::of(&template),
            template,
        })
    }

    /// The node that another template makes of this one. The state of a dynamic filter stays with
    /// the filter, wherever that goes.
    fn derive(&self, template: HashJoinExec) -> Result<Self> {
        let mut node = Self::from_template(template, &self.config)?;
        node.metrics = self.metrics.clone();
        if let (Some(old), Some(new)) = (&self.filter, &node.filter)
            && old.is_for_the_filter_of(new)
        {
            node.filter = Some(Arc::clone(old));
        }
        Ok(node)
    }

    /// Puts this node in the place of the `HashJoinExec` in what the template answered: the join
    /// itself, or one projection above it.
    fn rewrap(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        in_place_of_the_join(plan, &|join| self.derive(join.builder().build()?))
    }

    /// The join that this node runs.
    fn join(&self) -> Result<Arc<GraceHashJoin>> {
        let join = &self.template;
        let (build, probe) = (join.left.schema(), join.right.schema());
        let build_keys = ExprKeys::try_new(join.on.iter().map(|(l, _)| l), &build)?;
        let probe_keys = ExprKeys::try_new(join.on.iter().map(|(_, r)| r), &probe)?;
        let filter = join.filter.as_ref();
        let filter = filter.map(|f| Arc::new(ExprFilter::new(f)) as Arc<dyn ResidualFilter>);
        GraceHashJoin::builder(build, probe)
            .with_keys(Arc::new(build_keys), Arc::new(probe_keys))
            .with_join_type(join.join_type)
            .with_null_equality(join.null_equality)
            .with_null_aware(join.null_aware)
            .with_filter(filter)
            .with_projection(join.projection.as_deref().map(<[usize]>::to_vec))
            .with_output_schema(join.schema())
            .with_limit(join.fetch())
            .with_config(self.config.clone())
            .build()
    }

    /// Both inputs must have this partition, and no other arrangement joins what belongs together.
    fn check_partition(&self, partition: usize) -> Result<()> {
        let (build, probe) = partition_counts(&self.template);
        let is_single = self.template.mode == PartitionMode::CollectLeft;
        if build == probe && partition < build && !(is_single && build != 1) {
            return Ok(());
        }
        let mode = format!("{:?}", self.template.mode);
        Err(error::node_partition(&mode, partition, (build, probe)))
    }
}

/// `plan` with the node that `make` makes of the `HashJoinExec` in it.
fn in_place_of_the_join(
    plan: &Arc<dyn ExecutionPlan>,
    make: &dyn Fn(&HashJoinExec) -> Result<GraceHashJoinExec>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return Ok(Arc::new(make(join)?));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let join = in_place_of_the_join(projection.input(), make)?;
        return Arc::clone(plan).replace_children(
            vec![join],
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        );
    }
    Err(error::internal(format!(
        "a hash join answered with a {}, which GraceHashJoinExec cannot take",
        plan.name()
    )))
}

/// The partitions of the build and the probe side.
pub(crate) fn partition_counts(join: &HashJoinExec) -> (usize, usize) {
    let count = |side: &Arc<dyn ExecutionPlan>| side.output_partitioning().partition_count();
    (count(&join.left), count(&join.right))
}

/// `config` for as many partitions as `template` puts out.
fn for_partitions(
    config: &GraceHashJoinConfig,
    template: &HashJoinExec,
) -> Result<GraceHashJoinConfig> {
    let partitions = template
        .properties()
        .output_partitioning()
        .partition_count();
    let config = config.to_builder().with_partitions(partitions.max(1));
    config.build()
}

/// `properties` without any order.
fn unordered(properties: &Arc<PlanProperties>) -> Arc<PlanProperties> {
    let mut equivalences = properties.equivalence_properties().clone();
    equivalences.clear_orderings();
    let properties = properties.as_ref().clone();
    Arc::new(properties.with_eq_properties(equivalences))
}

impl DisplayAs for GraceHashJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        display::fmt_join(&self.template, &self.config, t, f)
    }
}

impl ExecutionPlan for GraceHashJoinExec {
    fn name(&self) -> &'static str {
        "GraceHashJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        match self.template.mode {
            PartitionMode::CollectLeft => InputDistributionRequirements::new(vec![
                Distribution::SinglePartition,
                Distribution::SinglePartition,
            ]),
            PartitionMode::Partitioned | PartitionMode::Auto => {
                self.template.input_distribution_requirements()
            }
        }
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false, false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        let benefits = self.template.mode == PartitionMode::Partitioned;
        vec![benefits, benefits]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.template.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.template.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.template.dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != 2 {
            return Err(error::node_children(children.len()));
        }
        let builder = match options.children_properties {
            ChildrenPropertiesMode::Keep => self.template.builder(),
            ChildrenPropertiesMode::Recompute => self.template.builder().recompute_properties(),
        };
        let template = builder.with_new_children(children)?.build()?;
        Ok(Arc::new(self.derive(template)?))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    /// Keeps the dynamic filter, unlike `HashJoinExec`: the scans keep it too, and whoever executes
    /// the new node first makes it `true` again, then fills it anew.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut node = self.derive(self.template.builder().build()?)?;
        node.metrics = NodeMetrics::default();
        Ok(Arc::new(node))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.check_partition(partition)?;
        let join = self.join()?;
        // Taken before anything can fail: whatever happens from here on, the other partitions
        // hear of this one.
        let observer = match &self.filter {
            Some(filter) => filter.observe(&self.template, partition, context.session_config())?,
            None => None,
        };
        let seat = observer.as_ref().and_then(Observer::seat);
        let observer = observer.map(|o| Box::new(o) as Box<dyn BuildObserver>);
        let build = self
            .template
            .left
            .execute(partition, Arc::clone(&context))?;
        let probe = self
            .template
            .right
            .execute(partition, Arc::clone(&context))?;
        let metrics = self.metrics.partition(partition);
        let stream = join.execute(build, probe, &context, partition, observer)?;
        Ok(Box::pin(MeteredStream::new(stream, metrics, seat)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.snapshot())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.template.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.template.statistics_from_inputs(input_stats, args)
    }

    fn supports_limit_pushdown(&self) -> bool {
        self.template.supports_limit_pushdown()
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let plan = self.template.with_fetch(limit)?;
        self.rewrap(&plan).ok()
    }

    fn fetch(&self) -> Option<usize> {
        self.template.fetch()
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let plan = self.template.try_swapping_with_projection(projection)?;
        plan.map(|p| self.rewrap(&p)).transpose()
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        self.template
            .gather_filters_for_pushdown(phase, parent_filters, config)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        child_pushdown_result: ChildPushdownResult,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let answer =
            self.template
                .handle_child_pushdown_result(phase, child_pushdown_result, config)?;
        let node = answer.updated_node.map(|p| self.rewrap(&p)).transpose()?;
        Ok(FilterPushdownPropagation {
            filters: answer.filters,
            updated_node: node,
        })
    }
}
