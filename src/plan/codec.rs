//! The node as bytes, for engines that plan in one process and execute in another.
//!
//! Job: carry everything that a [`GraceHashJoinExec`] carries. What DataFusion knows to encode, it
//! encodes: keys, filter, projection, fetch, null equality and dynamic filter travel as the
//! [`HashJoinExec`] with the same inputs, in DataFusion's own encoding, so that the two cannot
//! drift apart. What is ours travels as settings by name.
//!
//! Not its job: the children (DataFusion encodes those beside the node), and other nodes, which are
//! the inner codec's.
//!
//! The bytes:
//!
//! ```text
//! "grace_hash_join\0" | version, 1 byte | checksum, 8 bytes, little endian | Envelope, protobuf
//! ```
//!
//! Never misread: a protobuf reader takes a message that was cut between two fields for a shorter
//! one, hence the checksum; and it skips the fields that it does not know, which here would be a
//! part of a join silently lost. A version is therefore read by those who know it and refused by the
//! others; an unknown setting is an error, and so is one that is missing; and so is a field that is not
//! there any more once the message is written again (a newer DataFusion may say more of a join without
//! telling us).

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_execution::TaskContext;
use datafusion_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, WindowUDF};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion_physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion_physical_plan::empty::EmptyExec;
use datafusion_physical_plan::joins::HashJoinExec;
use datafusion_physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, PhysicalExtensionCodec, PhysicalPlanDecodeContext,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalPlanNode;
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::exec::GraceHashJoinExec;
use super::options::GraceHashJoinOptions;
use crate::config::GraceHashJoinConfig;
use crate::error;

/// What the bytes of a [`GraceHashJoinExec`] begin with.
const MAGIC: &[u8] = b"grace_hash_join\0";

/// Goes up whenever [`Envelope`] or the set of its settings changes, and with each major version of
/// DataFusion, whose bytes are in it. No other version is read: there has been one so far.
const VERSION: u8 = 1;

/// How many bytes the checksum of the message has.
const CHECKSUM_BYTES: usize = 8;

/// Everything but the children.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    /// The hash join with the same inputs, over placeholders that have the inputs' schemas.
    #[prost(message, optional, boxed, tag = "1")]
    join: Option<Box<PhysicalPlanNode>>,
    /// The configuration: keys and values as SQL's `SET` takes them, without the prefix.
    #[prost(btree_map = "string, string", tag = "2")]
    settings: BTreeMap<String, String>,
}

/// Encodes and decodes [`GraceHashJoinExec`] for DataFusion's protobuf plans: join type, keys,
/// filter, projection, fetch, null equality, null-awareness, dynamic filter and configuration.
///
/// Composes both ways. As one of several, in the same order on both sides:
///
/// ```
/// # use std::sync::Arc;
/// # use datafusion_proto::physical_plan::{
/// #     ComposedPhysicalExtensionCodec, DefaultPhysicalExtensionCodec,
/// # };
/// # use grace_hash_join::GraceHashJoinCodec;
/// # let theirs = Arc::new(DefaultPhysicalExtensionCodec {});
/// let codec = ComposedPhysicalExtensionCodec::new(vec![
///     theirs,
///     Arc::new(GraceHashJoinCodec::default()),
/// ]);
/// # let _ = codec;
/// ```
///
/// Or around another one, by [`Self::with_inner`]: that also lets join keys and filters use
/// functions which only the other codec can encode, since a composed codec does not reach into the
/// bytes of its members.
///
/// Dynamic filters keep their identity with the scans that read them where the plan is converted by
/// DataFusion's `DeduplicatingProtoConverter` on both sides.
#[derive(Debug)]
pub struct GraceHashJoinCodec {
    inner: Arc<dyn PhysicalExtensionCodec>,
}

impl Default for GraceHashJoinCodec {
    fn default() -> Self {
        Self::with_inner(Arc::new(DefaultPhysicalExtensionCodec {}))
    }
}

impl GraceHashJoinCodec {
    /// A codec that leaves all other nodes, and the functions and expressions of this one, to
    /// `inner`.
    #[must_use]
    pub fn with_inner(inner: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self { inner }
    }
}

impl PhysicalExtensionCodec for GraceHashJoinCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(body) = buf.strip_prefix(MAGIC) else {
            let other = self.inner.try_decode(buf, inputs, ctx, proto_converter);
            return other.map_err(|e| e.context(error::CODEC_NOT_OURS));
        };
        let envelope = Envelope::open(body)?;
        let ctx = PhysicalPlanDecodeContext::new(ctx, self);
        let join = proto_converter.proto_to_execution_plan(&envelope.join()?, &ctx)?;
        let join = with_inputs(join, inputs)?;
        let Some(join) = join.downcast_ref::<HashJoinExec>() else {
            return Err(error::codec_damaged(&format!(
                "they hold a {}",
                join.name()
            )));
        };
        let node = GraceHashJoinExec::try_from_hash_join(join)?;
        Ok(Arc::new(node.with_config(&envelope.config()?)?))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(join) = node.downcast_ref::<GraceHashJoinExec>() else {
            return self.inner.try_encode(node, buf, proto_converter);
        };
        let settings = GraceHashJoinOptions::settings(join.config())?;
        let join = proto_converter.execution_plan_to_proto(&without_inputs(join)?, self)?;
        let envelope = Envelope {
            join: Some(Box::new(join)),
            settings: settings.into_iter().collect(),
        };
        envelope.close(buf);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.inner.try_decode_udf(name, buf)
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udf(node, buf)
    }

    fn try_decode_higher_order_function(
        &self,
        name: &str,
        buf: &[u8],
    ) -> Result<Arc<HigherOrderUDF>> {
        self.inner.try_decode_higher_order_function(name, buf)
    }

    fn try_encode_higher_order_function(
        &self,
        node: &HigherOrderUDF,
        buf: &mut Vec<u8>,
    ) -> Result<()> {
        self.inner.try_encode_higher_order_function(node, buf)
    }

    fn try_decode_expr(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        ctx: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        self.inner.try_decode_expr(buf, inputs, ctx)
    }

    fn try_encode_expr(
        &self,
        node: &Arc<dyn PhysicalExpr>,
        buf: &mut Vec<u8>,
        ctx: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<()> {
        self.inner.try_encode_expr(node, buf, ctx)
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        self.inner.try_decode_udaf(name, buf)
    }

    fn try_encode_udaf(&self, node: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udaf(node, buf)
    }

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        self.inner.try_decode_udwf(name, buf)
    }

    fn try_encode_udwf(&self, node: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udwf(node, buf)
    }
}

impl Envelope {
    /// Writes what [`Self::open`] reads, magic included.
    fn close(&self, buf: &mut Vec<u8>) {
        let message = self.encode_to_vec();
        buf.extend_from_slice(MAGIC);
        buf.push(VERSION);
        buf.extend_from_slice(&xxh3_64(&message).to_le_bytes());
        buf.extend_from_slice(&message);
    }

    /// Reads what follows the magic.
    fn open(body: &[u8]) -> Result<Self> {
        let body = match body.split_first() {
            Some((&VERSION, body)) => body,
            Some((&version, _)) => return Err(error::codec_version(version, VERSION)),
            None => return Err(error::codec_damaged("they end before their version")),
        };
        let Some((checksum, message)) = body.split_first_chunk::<CHECKSUM_BYTES>() else {
            return Err(error::codec_damaged("they end before their checksum"));
        };
        if u64::from_le_bytes(*checksum) != xxh3_64(message) {
            return Err(error::codec_damaged("their checksum is another"));
        }
        let envelope = Self::decode(message).map_err(|e| error::codec_damaged(&e.to_string()))?;
        // What a reader does not know, it does not write.
        if envelope.encoded_len() != message.len() {
            return Err(error::codec_unknown_fields());
        }
        Ok(envelope)
    }

    fn join(&self) -> Result<PhysicalPlanNode> {
        let join = self.join.as_deref().cloned();
        join.ok_or_else(|| error::codec_damaged("they hold no join"))
    }

    fn config(&self) -> Result<GraceHashJoinConfig> {
        let mut options = GraceHashJoinOptions::default();
        for (key, value) in &self.settings {
            options = options.with(key, value)?;
        }
        let config = options.config()?;
        // Another version's default is no substitute for what was said.
        if GraceHashJoinOptions::settings(&config)?.len() != self.settings.len() {
            return Err(error::codec_damaged("a setting is missing"));
        }
        Ok(config)
    }
}

/// The hash join that plans `node`, over placeholders.
fn without_inputs(node: &GraceHashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let placeholder = |child: &&Arc<dyn ExecutionPlan>| -> Arc<dyn ExecutionPlan> {
        Arc::new(EmptyExec::new(child.schema()))
    };
    let placeholders = node.children().iter().map(placeholder).collect();
    Ok(Arc::new(
        node.template()
            .builder()
            .with_new_children(placeholders)?
            .build()?,
    ))
}

/// `join` over its real inputs, which must have the schemas of its placeholders: what the join
/// knows of columns, it knows by index.
fn with_inputs(
    join: Arc<dyn ExecutionPlan>,
    inputs: &[Arc<dyn ExecutionPlan>],
) -> Result<Arc<dyn ExecutionPlan>> {
    let placeholders = join.children();
    if placeholders.len() != inputs.len() {
        return Err(error::node_children(inputs.len()));
    }
    for (placeholder, input) in placeholders.into_iter().zip(inputs) {
        let (encoded, got) = (types_of(placeholder), types_of(input));
        if encoded != got {
            return Err(error::codec_input(&encoded, &got));
        }
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    join.replace_children(inputs.to_vec(), options)
}

fn types_of(plan: &Arc<dyn ExecutionPlan>) -> Vec<DataType> {
    let schema = plan.schema();
    let types = schema.fields().iter().map(|f| f.data_type().clone());
    types.collect()
}
