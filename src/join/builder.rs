//! What a join is, validated: schemas, keys, semantics, filter, projection, limit, configuration.
//!
//! Job: refuse at construction whatever could not be joined rightly, and work out once which
//! columns of each input are needed at all. Not its job: running; that is `join::run`.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion_common::{JoinSide, JoinType, NullEquality, Result};
use datafusion_execution::{SendableRecordBatchStream, TaskContext};
use futures::future::BoxFuture;

use super::null_aware;
use super::stream::GraceHashJoinStream;
use crate::config::GraceHashJoinConfig;
use crate::error;
use crate::keys;
use crate::memory::most_rows;
use crate::semantics::{OutputColumn, Semantics, Side};
use crate::spill;

/// The join keys of one side: a deterministic function from a batch to key arrays.
///
/// It is called again for rows read back from disk, so it must give the same keys for the same
/// rows every time.
pub trait JoinKeys: Debug + Send + Sync {
    /// The columns of the input that the keys are computed from, by index.
    fn columns(&self) -> &[usize];
    /// The type of each key.
    fn data_types(&self) -> Vec<DataType>;
    /// The keys, each as long as `batch`, whose columns are exactly [`Self::columns`], in order.
    ///
    /// # Errors
    /// Whatever the computation fails with; the join ends with that error.
    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>>;
}

/// A condition besides key equality. It sees pairs whose keys match, and no others.
pub trait ResidualFilter: Debug + Send + Sync {
    /// The columns that it looks at, by side and index in that side's input.
    /// `Left` is the build side, `Right` the probe side.
    fn columns(&self) -> &[(JoinSide, usize)];
    /// One value per row of `batch`, whose columns are exactly [`Self::columns`], in order.
    /// NULL counts as false.
    ///
    /// # Errors
    /// Whatever the evaluation fails with; the join ends with that error.
    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray>;
}

/// Told about the whole build side, spilled rows included; dynamic filters hang on it.
///
/// Dropping it before [`Self::built`] means that the build was not seen in full.
pub trait BuildObserver: Send {
    /// The keys of each build batch, before it is buffered. NULL keys are among them.
    ///
    /// # Errors
    /// Ends the join.
    fn keys(&mut self, keys: &[ArrayRef]) -> Result<()>;
    /// All build rows were seen. Awaited before the probe input is polled for the first time.
    fn built(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

/// Key columns taken as they are.
#[derive(Debug)]
struct ColumnKeys {
    columns: Vec<usize>,
    types: Vec<DataType>,
}

impl JoinKeys for ColumnKeys {
    fn columns(&self) -> &[usize] {
        &self.columns
    }

    fn data_types(&self) -> Vec<DataType> {
        self.types.clone()
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        Ok(batch.columns().to_vec())
    }
}

/// Which columns of one input the join needs, and where keys, filter and output find them.
#[derive(Debug)]
pub(crate) struct SideSpec {
    /// Needed columns, ascending indices into the input.
    pub(crate) needed: Vec<usize>,
    /// The schema of the needed columns: what is held in memory and written to disk.
    pub(crate) schema: SchemaRef,
    pub(crate) keys: Arc<dyn JoinKeys>,
    /// Where [`JoinKeys::columns`] are among the needed columns.
    pub(crate) key_columns: Vec<usize>,
}

/// A grace hash join of two inputs: what to join, not a running join. Executes any number of times.
#[derive(Debug)]
pub struct GraceHashJoin {
    pub(crate) semantics: Semantics,
    pub(crate) null_equality: NullEquality,
    /// Whether this is NOT IN.
    pub(crate) null_aware: bool,
    pub(crate) build: SideSpec,
    pub(crate) probe: SideSpec,
    pub(crate) filter: Option<FilterSpec>,
    /// Output columns after the projection; inputs are indices into the needed columns.
    pub(crate) output: Vec<OutputColumn>,
    pub(crate) schema: SchemaRef,
    pub(crate) limit: Option<usize>,
    /// How many partitions of it run now.
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) config: GraceHashJoinConfig,
}

/// The residual filter, with its columns as indices into the needed columns of each side.
#[derive(Debug)]
pub(crate) struct FilterSpec {
    pub(crate) filter: Arc<dyn ResidualFilter>,
    pub(crate) columns: Vec<(Side, usize)>,
    pub(crate) schema: SchemaRef,
}

impl GraceHashJoin {
    /// Starts a join of a build input (left, loaded first) with a probe input (right, streamed).
    #[must_use]
    pub fn builder(build_schema: SchemaRef, probe_schema: SchemaRef) -> GraceHashJoinBuilder {
        GraceHashJoinBuilder {
            build_schema,
            probe_schema,
            keys: None,
            join_type: Semantics::DEFAULT,
            null_equality: NullEquality::NullEqualsNothing,
            null_aware: false,
            filter: None,
            projection: None,
            output_schema: None,
            limit: None,
            config: GraceHashJoinConfig::default(),
        }
    }

    /// The schema of the output, after the projection.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The join type.
    #[must_use]
    pub fn join_type(&self) -> JoinType {
        self.semantics.join_type()
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &GraceHashJoinConfig {
        &self.config
    }

    /// Whether a column of one side's loaded rows is looked up in the order of the streamed rows, and
    /// not only handed out in its own.
    pub(crate) fn looks_up(&self, side: Side, index: usize) -> bool {
        let spec = match side {
            Side::Build => &self.build,
            Side::Probe => &self.probe,
        };
        let filter = self.filter.iter().flat_map(|filter| &filter.columns);
        self.semantics.pairs()
            || spec.key_columns.contains(&index)
            || filter.into_iter().any(|column| *column == (side, index))
    }

    /// The most rows of one output batch, whatever is in them: runs have numbers of few bits.
    pub(crate) fn most_output_rows(&self) -> usize {
        let fields = self.schema.fields().iter();
        let most = fields.map(|field| most_rows(field.data_type())).min();
        most.unwrap_or(usize::MAX)
    }

    /// Joins one partition. Nothing happens before the first poll; dropping the stream frees its
    /// memory and files in every state.
    ///
    /// Memory comes from the task's pool, spill files from its disk manager, the batch size from
    /// its session. `partition` only names the work, in errors and in the pool. Must be polled
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If the inputs' schemas are not those that the join was built with.
    pub fn execute(
        self: &Arc<Self>,
        build: SendableRecordBatchStream,
        probe: SendableRecordBatchStream,
        context: &TaskContext,
        partition: usize,
        observer: Option<Box<dyn BuildObserver>>,
    ) -> Result<GraceHashJoinStream> {
        super::check_input(Side::Build, &build.schema(), &self.build)?;
        super::check_input(Side::Probe, &probe.schema(), &self.probe)?;
        Ok(GraceHashJoinStream::start(
            Arc::clone(self),
            super::Inputs {
                build,
                probe,
                observer,
            },
            context,
            partition,
        ))
    }
}

/// Describes a [`GraceHashJoin`]; mistakes are reported by [`Self::build`].
#[derive(Debug)]
pub struct GraceHashJoinBuilder {
    build_schema: SchemaRef,
    probe_schema: SchemaRef,
    keys: Option<(KeySource, KeySource)>,
    join_type: JoinType,
    null_equality: NullEquality,
    null_aware: bool,
    filter: Option<Arc<dyn ResidualFilter>>,
    projection: Option<Vec<usize>>,
    output_schema: Option<SchemaRef>,
    limit: Option<usize>,
    config: GraceHashJoinConfig,
}

/// Where one side's keys come from, before the columns were checked.
#[derive(Debug)]
enum KeySource {
    Columns(Vec<usize>),
    Function(Arc<dyn JoinKeys>),
}

impl GraceHashJoinBuilder {
    /// Joins on pairs of columns: (index in the build input, index in the probe input).
    #[must_use]
    pub fn with_on(mut self, on: Vec<(usize, usize)>) -> Self {
        let (build, probe) = on.into_iter().unzip();
        self.keys = Some((KeySource::Columns(build), KeySource::Columns(probe)));
        self
    }

    /// Joins on computed keys.
    #[must_use]
    pub fn with_keys(mut self, build: Arc<dyn JoinKeys>, probe: Arc<dyn JoinKeys>) -> Self {
        self.keys = Some((KeySource::Function(build), KeySource::Function(probe)));
        self
    }

    /// The join type; `Inner` if not said.
    #[must_use]
    pub fn with_join_type(mut self, join_type: JoinType) -> Self {
        self.join_type = join_type;
        self
    }

    /// Whether NULL keys match each other; `NullEqualsNothing` if not said.
    #[must_use]
    pub fn with_null_equality(mut self, null_equality: NullEquality) -> Self {
        self.null_equality = null_equality;
        self
    }

    /// NOT IN: a `LeftAnti` join with one key whose NULLs make the answer unknown. A NULL among the
    /// probe keys leaves no row to come out; build rows with a NULL key come out only if there is no
    /// probe row at all. Both are about all probe rows, so all must be in one partition.
    #[must_use]
    pub fn with_null_aware(mut self, null_aware: bool) -> Self {
        self.null_aware = null_aware;
        self
    }

    /// A condition besides key equality.
    #[must_use]
    pub fn with_filter(mut self, filter: Option<Arc<dyn ResidualFilter>>) -> Self {
        self.filter = filter;
        self
    }

    /// Which of the join's columns come out, in which order; `Some(vec![])` gives batches of no
    /// columns that still count their rows.
    #[must_use]
    pub fn with_projection(mut self, projection: Option<Vec<usize>>) -> Self {
        self.projection = projection;
        self
    }

    /// The schema to hand out, after the projection, where the join's own is not good enough
    /// (metadata, tighter nullability). Its types must be those of the join's columns.
    #[must_use]
    pub fn with_output_schema(mut self, schema: SchemaRef) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// The most rows that one partition hands out.
    #[must_use]
    pub fn with_limit(mut self, limit: Option<usize>) -> Self {
        self.limit = limit;
        self
    }

    /// The configuration.
    #[must_use]
    pub fn with_config(mut self, config: GraceHashJoinConfig) -> Self {
        self.config = config;
        self
    }

    /// # Errors
    /// A plan error if there are no keys, if key counts or types differ, if a type cannot be hashed
    /// and compared, if keys, filter, projection or output schema name what is not there, if a
    /// null-aware join is no `LeftAnti` join or has several keys.
    pub fn build(self) -> Result<Arc<GraceHashJoin>> {
        let semantics = Semantics::new(self.join_type);
        let (build_source, probe_source) = self.keys.ok_or_else(error::no_keys)?;
        let build_keys = build_source.resolve(Side::Build, &self.build_schema)?;
        let probe_keys = probe_source.resolve(Side::Probe, &self.probe_schema)?;
        check_keys(&build_keys.data_types(), &probe_keys.data_types())?;
        if self.null_aware {
            let keys = build_keys.data_types().len();
            if !semantics.may_be_null_aware() || keys != 1 {
                return Err(error::null_aware(self.join_type, keys));
            }
        }
        let (full_schema, full_output) = semantics.output(&self.build_schema, &self.probe_schema);
        let output = Projected::new(&full_schema, &full_output, self.projection.as_deref())?;
        let schema = output.declared(self.output_schema)?;
        let (build, probe) = (&self.build_schema, &self.probe_schema);
        let filter = self.filter.as_ref();
        let build = SideSpec::new(Side::Build, build, build_keys, &output.columns, filter)?;
        let probe = SideSpec::new(Side::Probe, probe, probe_keys, &output.columns, filter)?;
        let filter = self
            .filter
            .map(|f| FilterSpec::new(f, &build, &probe))
            .transpose()?;
        let output = output
            .columns
            .into_iter()
            .map(|c| narrowed(c, &build, &probe));
        Ok(Arc::new(GraceHashJoin {
            semantics,
            null_equality: null_aware::null_equality(self.null_aware, self.null_equality),
            null_aware: self.null_aware,
            output: output.collect::<Result<_>>()?,
            build,
            probe,
            filter,
            schema,
            limit: self.limit,
            running: Arc::default(),
            config: self.config,
        }))
    }
}

impl KeySource {
    fn resolve(self, side: Side, schema: &SchemaRef) -> Result<Arc<dyn JoinKeys>> {
        let total = schema.fields().len();
        let check = |columns: &[usize]| match columns.iter().find(|c| **c >= total) {
            Some(index) => Err(error::no_such_column(
                &format!("a join key of the {} side", side.name()),
                *index,
                total,
            )),
            None => Ok(()),
        };
        match self {
            Self::Columns(columns) => {
                check(&columns)?;
                let types = columns
                    .iter()
                    .map(|c| schema.field(*c).data_type().clone())
                    .collect();
                Ok(Arc::new(ColumnKeys { columns, types }))
            }
            Self::Function(keys) => {
                check(keys.columns())?;
                Ok(keys)
            }
        }
    }
}

fn check_keys(build: &[DataType], probe: &[DataType]) -> Result<()> {
    if build.len() != probe.len() {
        return Err(error::key_count(build.len(), probe.len()));
    }
    if build.is_empty() {
        return Err(error::no_keys());
    }
    for (index, (build, probe)) in build.iter().zip(probe).enumerate() {
        // Nested field names and metadata do not change what a key is; everything else does.
        if !build.equals_datatype(probe) {
            return Err(error::key_types(index, build, probe));
        }
        keys::check_supported(index, build)?;
    }
    Ok(())
}

/// The output's columns after the projection.
struct Projected {
    columns: Vec<OutputColumn>,
    schema: SchemaRef,
}

impl Projected {
    fn new(
        schema: &SchemaRef,
        columns: &[OutputColumn],
        projection: Option<&[usize]>,
    ) -> Result<Self> {
        let Some(projection) = projection else {
            return Ok(Self {
                columns: columns.to_vec(),
                schema: Arc::clone(schema),
            });
        };
        let pick = |index: &usize| {
            columns
                .get(*index)
                .copied()
                .ok_or_else(|| error::no_such_column("the projection", *index, columns.len()))
        };
        let picked = projection.iter().map(pick).collect::<Result<_>>()?;
        Ok(Self {
            columns: picked,
            schema: Arc::new(schema.project(projection)?),
        })
    }

    /// The schema to hand out: the declared one if it fits the columns.
    fn declared(&self, declared: Option<SchemaRef>) -> Result<SchemaRef> {
        let Some(declared) = declared else {
            return Ok(Arc::clone(&self.schema));
        };
        let types = |s: &SchemaRef| {
            s.fields()
                .iter()
                .map(|f| f.data_type().clone())
                .collect::<Vec<_>>()
        };
        if types(&declared) == types(&self.schema) {
            Ok(declared)
        } else {
            Err(error::output_schema(
                &self.schema.to_string(),
                &declared.to_string(),
            ))
        }
    }
}

impl SideSpec {
    fn new(
        side: Side,
        schema: &SchemaRef,
        keys: Arc<dyn JoinKeys>,
        output: &[OutputColumn],
        filter: Option<&Arc<dyn ResidualFilter>>,
    ) -> Result<Self> {
        let total = schema.fields().len();
        let mut is_needed = vec![false; total];
        let mut need = |what: &str, index: usize| match is_needed.get_mut(index) {
            Some(needed) => {
                *needed = true;
                Ok(())
            }
            None => Err(error::no_such_column(what, index, total)),
        };
        for index in keys.columns() {
            need("a join key", *index)?;
        }
        for (from, index) in filter.iter().flat_map(|f| f.columns()) {
            if Side::from_join_side(*from) == Some(side) {
                need("the filter", *index)?;
            }
        }
        for column in output {
            match column {
                OutputColumn::Input(from, index) if *from == side => need("the output", *index)?,
                _ => {}
            }
        }
        let needed: Vec<usize> = is_needed
            .iter()
            .enumerate()
            .filter(|(_, n)| **n)
            .map(|(i, _)| i)
            .collect();
        let schema = Arc::new(schema.project(&needed)?);
        spill::check_supported(side.name(), &schema)?;
        let mut spec = Self {
            schema,
            needed,
            keys,
            key_columns: Vec::new(),
        };
        let positions = spec.keys.columns().iter().map(|c| spec.position(*c));
        spec.key_columns = positions.collect::<Result<_>>()?;
        Ok(spec)
    }

    /// Where the input's column `index` is among the needed ones.
    fn position(&self, index: usize) -> Result<usize> {
        self.needed
            .binary_search(&index)
            .map_err(|_| error::internal(format!("column {index} is used but was not kept")))
    }
}

impl FilterSpec {
    fn new(filter: Arc<dyn ResidualFilter>, build: &SideSpec, probe: &SideSpec) -> Result<Self> {
        let mut columns = Vec::new();
        let mut fields = Vec::new();
        for (from, index) in filter.columns() {
            let side = Side::from_join_side(*from).ok_or_else(error::filter_side)?;
            let spec = match side {
                Side::Build => build,
                Side::Probe => probe,
            };
            let position = spec.position(*index)?;
            columns.push((side, position));
            fields.push(spec.schema.field(position).clone());
        }
        Ok(Self {
            filter,
            columns,
            schema: Arc::new(Schema::new(fields)),
        })
    }
}

/// An output column as an index into the needed columns of its side.
fn narrowed(column: OutputColumn, build: &SideSpec, probe: &SideSpec) -> Result<OutputColumn> {
    Ok(match column {
        OutputColumn::Input(Side::Build, i) => OutputColumn::Input(Side::Build, build.position(i)?),
        OutputColumn::Input(Side::Probe, i) => OutputColumn::Input(Side::Probe, probe.position(i)?),
        OutputColumn::Mark => OutputColumn::Mark,
    })
}
