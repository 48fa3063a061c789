//! The promise: what a `GraceHashJoinExec` carries, its bytes carry; and bytes are read as what they
//! are or refused, never taken for something else.

use std::any::Any;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinSide, JoinType, NullEquality, Result};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, DynamicFilterPhysicalExpr, col, lit,
};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, collect, displayable,
};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use datafusion_proto::physical_plan::{
    ComposedPhysicalExtensionCodec, DeduplicatingProtoConverter, DefaultPhysicalExtensionCodec,
    DefaultPhysicalProtoConverter, PhysicalExtensionCodec, PhysicalPlanDecodeContext,
    PhysicalProtoConverterExtension,
};
use engines_testbed::{answers, partitioned, tpch};
use grace_hash_join::{
    GraceHashJoinCodec, GraceHashJoinConfig, GraceHashJoinExec, GraceHashJoinOptions, SpillCodec,
    SpillPolicy, rewrite_task_plan,
};
use xxhash_rust::xxh3::xxh3_64;

/// Where in a node's bytes the version stands, and where the message begins.
const VERSION_AT: usize = 16;
const MESSAGE_AT: usize = VERSION_AT + 1 + 8;

const JOIN_TYPES: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::RightSemi,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::LeftMark,
    JoinType::RightMark,
];

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Utf8View, true),
        Field::new("f", DataType::Float64, false),
    ]))
}

fn side(partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let source = Arc::new(EmptyExec::new(schema()));
    match partitions {
        1 => Ok(source),
        _ => {
            let by = Partitioning::Hash(vec![col("k", &schema())?], partitions);
            Ok(Arc::new(RepartitionExec::try_new(source, by)?))
        }
    }
}

fn filter() -> JoinFilter {
    let sides = [(2, JoinSide::Right), (1, JoinSide::Left)];
    let columns = sides.map(|(index, side)| ColumnIndex { index, side });
    let fields = vec![schema().field(2).clone(), schema().field(1).clone()];
    let bound: Arc<dyn PhysicalExpr> = Arc::new(Column::new("f", 0));
    JoinFilter::new(
        Arc::new(BinaryExpr::new(bound, Operator::Gt, lit(1.5))),
        columns.to_vec(),
        Arc::new(Schema::new(fields)),
    )
}

/// One combination of what a join carries.
#[derive(Clone, Copy, Debug)]
struct Case {
    join_type: JoinType,
    mode: PartitionMode,
    has_filter: bool,
    /// None, of no column, or of some.
    projection: Option<&'static [usize]>,
    fetch: Option<usize>,
    null_equality: NullEquality,
    null_aware: bool,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for join_type in JOIN_TYPES {
            for mode in [PartitionMode::Partitioned, PartitionMode::CollectLeft] {
                for has_filter in [false, true] {
                    for projection in [None, Some(&[][..]), Some(&[1, 0][..])] {
                        for fetch in [None, Some(0), Some(9)] {
                            for null_equality in [
                                NullEquality::NullEqualsNothing,
                                NullEquality::NullEqualsNull,
                            ] {
                                let case = Self {
                                    join_type,
                                    mode,
                                    has_filter,
                                    projection,
                                    fetch,
                                    null_equality,
                                    null_aware: false,
                                };
                                all.push(case);
                                all.push(Self {
                                    null_aware: true,
                                    ..case
                                });
                            }
                        }
                    }
                }
            }
        }
        all.retain(|case| !case.null_aware || case.can_be_null_aware());
        all
    }

    /// What `HashJoinExec` takes as `NOT IN`.
    fn can_be_null_aware(&self) -> bool {
        self.join_type == JoinType::LeftAnti
            && self.mode == PartitionMode::CollectLeft
            && self.null_equality == NullEquality::NullEqualsNothing
            && !self.has_filter
    }

    fn hash_join(&self) -> Result<HashJoinExec> {
        let partitions = match self.mode {
            PartitionMode::CollectLeft => 1,
            _ => 3,
        };
        self.hash_join_of(side(partitions)?, side(partitions)?)
    }

    fn hash_join_of(
        &self,
        left: Arc<dyn ExecutionPlan>,
        right: Arc<dyn ExecutionPlan>,
    ) -> Result<HashJoinExec> {
        let on = vec![(col("k", &schema())?, col("k", &schema())?)];
        HashJoinExecBuilder::new(left, right, on, self.join_type)
            .with_filter(self.has_filter.then(filter))
            .with_projection(self.projection.map(<[usize]>::to_vec))
            .with_partition_mode(self.mode)
            .with_null_equality(self.null_equality)
            .with_null_aware(self.null_aware)
            .with_fetch(self.fetch)
            .build()
    }
}

fn node(join: &HashJoinExec, config: &GraceHashJoinConfig) -> Result<Arc<dyn ExecutionPlan>> {
    let node = GraceHashJoinExec::try_from_hash_join(join)?;
    Ok(Arc::new(node.with_config(config)?))
}

fn context() -> Arc<TaskContext> {
    SessionContext::new().task_ctx()
}

fn encode(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<u8>> {
    let codec = GraceHashJoinCodec::default();
    let bytes = physical_plan_to_bytes_with_extension_codec(Arc::clone(plan), &codec)?;
    Ok(bytes.to_vec())
}

fn decode(bytes: &[u8]) -> Result<Arc<dyn ExecutionPlan>> {
    let codec = GraceHashJoinCodec::default();
    physical_plan_from_bytes_with_extension_codec(bytes, &context(), &codec)
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(true).to_string()
}

fn grace(plan: &Arc<dyn ExecutionPlan>) -> &GraceHashJoinExec {
    plan.downcast_ref().expect("a GraceHashJoinExec")
}

/// The bytes of one node, without its inputs, as a codec gives them.
fn own_bytes_of(node: &Arc<dyn ExecutionPlan>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let codec = GraceHashJoinCodec::default();
    codec.try_encode(
        Arc::clone(node),
        &mut bytes,
        &DefaultPhysicalProtoConverter {},
    )?;
    Ok(bytes)
}

/// What the codec makes of such bytes, over these inputs.
fn node_of(bytes: &[u8], inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
    let codec = GraceHashJoinCodec::default();
    codec.try_decode(bytes, inputs, &context(), &DefaultPhysicalProtoConverter {})
}

/// The bytes of one node, and its inputs.
fn own_bytes() -> Result<(Vec<u8>, Vec<Arc<dyn ExecutionPlan>>)> {
    let case = Case::all()[0];
    let node = node(&case.hash_join()?, &GraceHashJoinConfig::default())?;
    let inputs = node.children().into_iter().cloned().collect();
    Ok((own_bytes_of(&node)?, inputs))
}

/// What the codec says of bytes that it must refuse.
fn refusal(bytes: &[u8], inputs: &[Arc<dyn ExecutionPlan>]) -> String {
    match node_of(bytes, inputs) {
        Ok(plan) => panic!("read as\n{}", text(&plan)),
        Err(error) => error.to_string(),
    }
}

/// The bytes with another message, and the checksum that goes with it.
fn with_message(bytes: &[u8], message: &[u8]) -> Vec<u8> {
    let mut new = bytes[..=VERSION_AT].to_vec();
    new.extend_from_slice(&xxh3_64(message).to_le_bytes());
    new.extend_from_slice(message);
    new
}

#[test]
fn every_field_of_every_join_survives() -> Result<()> {
    let mut seen = HashSet::new();
    let mut null_aware = 0;
    for case in Case::all() {
        let join = case.hash_join()?;
        let plan = node(&join, &GraceHashJoinConfig::default())?;
        let bytes = encode(&plan)?;
        let back = decode(&bytes)?;
        assert_eq!(text(&back), text(&plan), "{case:?}");
        assert_eq!(back.schema(), plan.schema(), "{case:?}");
        assert_eq!(back.fetch(), case.fetch, "{case:?}");
        let partitions = |p: &Arc<dyn ExecutionPlan>| p.output_partitioning().partition_count();
        assert_eq!(partitions(&back), partitions(&plan), "{case:?}");
        assert_eq!(grace(&back).config(), grace(&plan).config(), "{case:?}");
        // Nothing was lost on the way back, and nothing was left out on the way there.
        assert_eq!(encode(&back)?, bytes, "{case:?}");
        assert!(seen.insert(bytes), "{case:?} has the bytes of another");
        null_aware += usize::from(case.null_aware);
    }
    assert!(seen.len() > 700, "{}", seen.len());
    assert!(null_aware > 0);
    Ok(())
}

/// A side with these keys, and something beside them, in one partition.
fn rows_of(keys: Vec<Option<i64>>) -> Result<Arc<dyn ExecutionPlan>> {
    let texts = keys.iter().map(|k| k.map(|k| format!("v{}", k % 3)));
    let numbers: Vec<f64> = (0_u8..).map(f64::from).take(keys.len()).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(keys.clone())),
        Arc::new(StringViewArray::from_iter(texts)),
        Arc::new(Float64Array::from(numbers)),
    ];
    let batch = RecordBatch::try_new(schema(), columns)?;
    Ok(MemorySourceConfig::try_new_exec(
        &[vec![batch]],
        schema(),
        None,
    )?)
}

async fn answer(plan: Arc<dyn ExecutionPlan>) -> engines_testbed::Result<Vec<String>> {
    let schema = plan.schema();
    let batches = collect(plan, context()).await?;
    let mut rows = answers::rows(&schema, &batches)?;
    rows.sort_unstable();
    Ok(rows)
}

#[tokio::test]
async fn what_was_decoded_answers_as_the_hash_join_that_was_encoded() -> engines_testbed::Result<()>
{
    let on_disk = GraceHashJoinConfig::builder()
        .with_spill(SpillPolicy::All)
        .build()?;
    let left = [Some(1), Some(2), Some(2), Some(3), Some(4), None, Some(9)];
    let right = [Some(2), Some(2), Some(3), Some(5), Some(4)];
    let with_null = [&right[..], &[None]].concat();
    let mut not_in = HashSet::new();
    for case in Case::all() {
        for right in [right.to_vec(), with_null.clone(), vec![]] {
            let inputs = [rows_of(left.to_vec())?, rows_of(right)?];
            let join = case.hash_join_of(Arc::clone(&inputs[0]), Arc::clone(&inputs[1]))?;
            let bytes = own_bytes_of(&node(&join, &on_disk)?)?;
            let found = answer(node_of(&bytes, &inputs)?).await?;
            let expected = answer(Arc::new(join)).await?;
            if case.fetch.is_some() {
                // Any rows, but so many of them.
                let whole = Case {
                    fetch: None,
                    ..case
                };
                let [left, right] = inputs;
                let whole = answer(Arc::new(whole.hash_join_of(left, right)?)).await?;
                assert_eq!(found.len(), expected.len(), "{case:?}");
                assert!(found.iter().all(|row| whole.contains(row)), "{case:?}");
            } else {
                assert_eq!(found, expected, "{case:?}");
            }
            if case.null_aware {
                not_in.insert(found.len());
            }
        }
    }
    // A NULL among the values leaves nothing, none leaves some, no value leaves all.
    assert!(not_in.len() >= 3, "{not_in:?}");
    Ok(())
}

/// A sequence of numbers that is the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap_or(0)
    }

    /// Bytes that are no longer what they were: changed, cut out, doubled or put in.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(12)).min(bytes.len());
            match self.below(5) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = u8::try_from(self.below(256)).unwrap_or(0),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => bytes.insert(at, u8::try_from(self.below(256)).unwrap_or(0)),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
    }
}

/// A checksum that is right over a message that is not: what no accident makes, and the worst that
/// somebody else's codec could hand to this one.
#[test]
fn a_forged_message_is_refused_or_read_to_its_last_byte() -> Result<()> {
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let (mut read, mut refused) = (0, 0);
    for case in Case::all().into_iter().step_by(7) {
        let node = node(&case.hash_join()?, &GraceHashJoinConfig::default())?;
        let inputs: Vec<_> = node.children().into_iter().cloned().collect();
        let bytes = own_bytes_of(&node)?;
        for _ in 0..60 {
            let mut message = bytes[MESSAGE_AT..].to_vec();
            numbers.mutate(&mut message);
            let forged = with_message(&bytes, &message);
            let Ok(back) = node_of(&forged, &inputs) else {
                refused += 1;
                continue;
            };
            // Whatever it says now, nothing of it was skipped.
            let again = own_bytes_of(&back)?;
            assert_eq!(again.len(), forged.len(), "{case:?}: {}", text(&back));
            read += 1;
        }
    }
    println!("{read} read, {refused} refused");
    assert!(
        read > 30 && refused > 5_000,
        "{read} read, {refused} refused"
    );
    Ok(())
}

/// The whole plan, inputs and all, as an engine sends it.
#[test]
fn a_plan_whose_bytes_are_damaged_is_no_panic() -> Result<()> {
    let mut numbers = Numbers(0xD1B5_4A32_D192_ED03);
    let mut refused = 0;
    for case in Case::all().into_iter().step_by(7) {
        let plan = node(&case.hash_join()?, &GraceHashJoinConfig::default())?;
        let bytes = encode(&plan)?;
        for _ in 0..100 {
            let mut damaged = bytes.clone();
            numbers.mutate(&mut damaged);
            damaged.truncate(1 + numbers.below(2 * damaged.len()));
            match decode(&damaged) {
                Err(_) => refused += 1,
                // Damage outside of the node's own bytes is not for the codec to see: but the join
                // is the one that it was.
                Ok(back) => {
                    if let Some(back) = back.downcast_ref::<GraceHashJoinExec>() {
                        let line = |p: &dyn ExecutionPlan| displayable(p).one_line().to_string();
                        assert_eq!(line(back), line(plan.as_ref()), "{case:?}");
                    }
                }
            }
        }
    }
    assert!(refused > 5_000, "{refused}");
    Ok(())
}

#[test]
fn every_setting_survives() -> Result<()> {
    let join = Case::all()[0].hash_join()?;
    for fan_out in [2, 256] {
        for max_level in [0, 255] {
            for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
                for codec in [
                    SpillCodec::Inherit,
                    SpillCodec::Uncompressed,
                    SpillCodec::Lz4Frame,
                    SpillCodec::Zstd,
                ] {
                    let config = GraceHashJoinConfig::builder()
                        .with_fan_out(fan_out)
                        .with_max_level(max_level)
                        .with_spill(spill)
                        .with_codec(codec)
                        .build()?;
                    let plan = node(&join, &config)?;
                    let back = decode(&encode(&plan)?)?;
                    assert_eq!(grace(&back).config(), grace(&plan).config());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn several_codecs_compose_in_either_way() -> Result<()> {
    let plan = node(
        &Case::all()[0].hash_join()?,
        &GraceHashJoinConfig::default(),
    )?;
    let one_of_several: Arc<dyn PhysicalExtensionCodec> =
        Arc::new(ComposedPhysicalExtensionCodec::new(vec![
            Arc::new(DefaultPhysicalExtensionCodec {}),
            Arc::new(GraceHashJoinCodec::default()),
        ]));
    let around_another = GraceHashJoinCodec::with_inner(Arc::clone(&one_of_several));
    for codec in [one_of_several, Arc::new(around_another)] {
        let bytes = physical_plan_to_bytes_with_extension_codec(Arc::clone(&plan), codec.as_ref())?;
        let back =
            physical_plan_from_bytes_with_extension_codec(&bytes, &context(), codec.as_ref())?;
        assert_eq!(text(&back), text(&plan));
    }
    Ok(())
}

#[test]
fn bytes_of_something_else_are_refused() -> Result<()> {
    let (_, inputs) = own_bytes()?;
    for bytes in [&b""[..], b"grace", b"some other node"] {
        let error = refusal(bytes, &inputs);
        assert!(
            error.contains("not the bytes of a GraceHashJoinExec"),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn truncated_bytes_are_refused_wherever_they_end() -> Result<()> {
    let (bytes, inputs) = own_bytes()?;
    for end in 0..bytes.len() {
        let error = refusal(&bytes[..end], &inputs);
        let is_clear = error.contains("are damaged") || error.contains("not the bytes");
        assert!(is_clear, "cut at {end}: {error}");
    }
    Ok(())
}

#[test]
fn a_flipped_bit_is_refused_wherever_it_is() -> Result<()> {
    let (bytes, inputs) = own_bytes()?;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let error = refusal(&bytes, &inputs);
            assert!(error.contains("GraceHashJoinExec"), "byte {at}: {error}");
        }
    }
    Ok(())
}

#[test]
fn other_versions_are_refused() -> Result<()> {
    let (mut bytes, inputs) = own_bytes()?;
    for version in [0, 2, 255] {
        bytes[VERSION_AT] = version;
        let error = refusal(&bytes, &inputs);
        assert!(
            error.contains(&format!("of version {version}, and this is version 1")),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn what_a_newer_version_adds_is_refused_and_not_skipped() -> Result<()> {
    let (bytes, inputs) = own_bytes()?;
    let message = &bytes[MESSAGE_AT..];
    // Field 15, a number: protobuf readers that do not know it skip it.
    let unknown_field = [message, &[15 << 3, 1]].concat();
    let error = refusal(&with_message(&bytes, &unknown_field), &inputs);
    assert!(
        error.contains("say more than this version understands"),
        "{error}"
    );
    // One more entry of field 2, the settings.
    let unknown_setting = [message, b"\x12\x0d\x0a\x06colour\x12\x03red"].concat();
    let error = refusal(&with_message(&bytes, &unknown_setting), &inputs);
    assert!(
        error.contains("colour") && error.contains("fan_out"),
        "{error}"
    );
    // A setting that is not there would be whatever the reader's default is.
    let (one, other) = (b"\x12\x0e\x0a\x09max_level\x12\x016", message);
    let at = other.windows(one.len()).position(|w| w == one);
    let at = at.expect("the setting that is left out");
    let fewer = [&other[..at], &other[at + one.len()..]].concat();
    let error = refusal(&with_message(&bytes, &fewer), &inputs);
    assert!(error.contains("a setting is missing"), "{error}");
    // The message as it is, put together in the same way, is read.
    let same = with_message(&bytes, message);
    assert_eq!(same, bytes);
    Ok(())
}

#[test]
fn inputs_of_other_types_are_refused() -> Result<()> {
    let (bytes, mut inputs) = own_bytes()?;
    inputs[1] = Arc::new(EmptyExec::new(Arc::new(Schema::new(vec![Field::new(
        "k",
        DataType::Int32,
        true,
    )]))));
    let error = refusal(&bytes, &inputs);
    assert!(
        error.contains("Int64") && error.contains("Int32"),
        "{error}"
    );
    inputs.pop();
    refusal(&bytes, &inputs);
    Ok(())
}

/// Bytes that the first version wrote. To make them anew, after a change of version only:
/// `GRACE_BLESS=1 cargo test --test codec fixture`.
#[test]
fn the_fixture_of_version_1_stays_readable() -> Result<()> {
    let case = Case {
        join_type: JoinType::Left,
        mode: PartitionMode::Partitioned,
        has_filter: true,
        projection: Some(&[4, 0]),
        fetch: Some(9),
        null_equality: NullEquality::NullEqualsNull,
        null_aware: false,
    };
    let config = GraceHashJoinConfig::builder()
        .with_fan_out(32)
        .with_max_level(3)
        .with_spill(SpillPolicy::Half)
        .with_codec(SpillCodec::Zstd)
        .build()?;
    let plan = node(&case.hash_join()?, &config)?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1.bin");
    if std::env::var_os("GRACE_BLESS").is_some() {
        std::fs::write(&file, encode(&plan)?)?;
    }
    let bytes = std::fs::read(&file)?;
    let back = decode(&bytes)?;
    assert_eq!(text(&back), text(&plan));
    assert_eq!(grace(&back).config(), grace(&plan).config());
    assert_eq!(back.schema(), plan.schema());
    assert_eq!(encode(&back)?, encode(&plan)?);
    Ok(())
}

/// The dynamic filters that the scans of `plan` read.
fn read_by_scans(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        if node.children().is_empty() {
            node.apply_expressions(&mut |root| {
                root.apply(|e| {
                    if e.expression_id().is_some() {
                        found.push(Arc::clone(e));
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

fn as_dynamic(expr: &Arc<dyn PhysicalExpr>) -> Arc<DynamicFilterPhysicalExpr> {
    let expr: Arc<dyn PhysicalExpr> = Arc::clone(expr);
    let expr: Arc<dyn Any + Send + Sync> = expr;
    expr.downcast().expect("a dynamic filter")
}

#[tokio::test]
async fn a_dynamic_filter_stays_the_one_that_the_scan_reads() -> engines_testbed::Result<()> {
    let config = partitioned(SessionConfig::new().with_target_partitions(2))
        .with_option_extension(GraceHashJoinOptions::default());
    let ctx = SessionContext::new_with_config(config);
    tpch::register(&ctx, &tpch::tables(0.01)?).await?;
    let sql = "SELECT c_name, o_orderkey FROM customer JOIN orders ON c_custkey = o_custkey \
               WHERE c_acctbal < 0";
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let plan = rewrite_task_plan(plan, ctx.state().config().options())?;

    let codec = GraceHashJoinCodec::default();
    let converter = DeduplicatingProtoConverter {};
    let proto = converter.execution_plan_to_proto(&plan, &codec)?;
    let task = ctx.task_ctx();
    let context = PhysicalPlanDecodeContext::new(&task, &codec);
    let back = converter.proto_to_execution_plan(&proto, &context)?;

    let mut produced = Vec::new();
    back.apply(|node| {
        if node.is::<GraceHashJoinExec>() {
            produced.extend(node.dynamic_expressions_produced());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let read = read_by_scans(&back)?;
    assert_eq!((produced.len(), read.len()), (1, 1), "{}", text(&back));
    assert_eq!(produced[0].expression_id(), read[0].expression_id());
    // What the join writes, the scan sees.
    as_dynamic(&produced[0]).update(lit(false))?;
    assert_eq!(as_dynamic(&read[0]).current()?.to_string(), "false");
    Ok(())
}
