//! The working space of a join that spills: what covers its buffers, writers and readers.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::context::JoinContext;
use crate::bucket::FanOut;
use crate::memory::{Lease, WorkSpace};
use crate::semantics::Side;
use crate::spill::RunWriter;

/// The working space of a join that spills, with the leases that cover it.
pub(crate) struct Space {
    pub(crate) plan: WorkSpace,
    /// Shared with writes in flight, which outlive the stream by a moment.
    floor: Arc<Lease>,
    extra: Lease,
    /// Bytes of a lease that the queue of writes has.
    behind: usize,
}

impl Space {
    pub(super) fn new(plan: WorkSpace, floor: Lease, extra: Lease) -> Self {
        Self {
            plan,
            floor: Arc::new(floor),
            extra,
            behind: 0,
        }
    }

    pub(crate) fn fan_out(&self) -> FanOut {
        FanOut::new(self.plan.fan_out)
    }

    /// A writer for one bucket's rows of one side.
    pub(crate) fn writer(&self, ctx: &JoinContext, side: Side) -> RunWriter {
        let what = match side {
            Side::Build => "build rows",
            Side::Probe => "probe rows",
        };
        self.writer_of(ctx, &ctx.side(side).schema, what)
    }

    /// A writer for rows of another schema.
    pub(crate) fn writer_of(
        &self,
        ctx: &JoinContext,
        schema: &SchemaRef,
        what: &'static str,
    ) -> RunWriter {
        RunWriter::new(&ctx.spiller, schema, what, &self.floor)
    }

    fn held(&self) -> usize {
        self.floor.bytes() + self.extra.bytes() + self.behind
    }

    /// For the drain phase, which reads: with as many buckets as that leaves memory for. The floor
    /// is always enough for the fewest.
    pub(crate) fn for_drain(mut self) -> Self {
        while self.plan.fan_out > WorkSpace::FLOOR.fan_out {
            let missing = self.plan.bytes().saturating_sub(self.held());
            if self.extra.try_extend(missing) {
                break;
            }
            self.plan.fan_out /= 2;
            self.plan.buffer = WorkSpace::FLOOR.buffer;
        }
        self
    }

    /// Enlarges the buffers, for the most that was ever held, if there is room by now.
    pub(super) fn widen(&mut self, ctx: &JoinContext) {
        let wide = self.plan.widened(peak_bytes(ctx));
        if wide != self.plan
            && self
                .extra
                .try_extend(wide.bytes().saturating_sub(self.held()))
        {
            self.plan = wide;
            let more = self.extra.split(wide.behind.saturating_sub(self.behind));
            self.behind += more.bytes();
            ctx.spiller.write_behind(wide.buffer + self.behind, more);
        }
    }
}

/// The part of the most that was ever held that output batches may have, as a divisor.
const OUTPUT_PART: usize = 32;

/// What output batches that are worth handing out may have.
pub(crate) fn output_bytes(ctx: &JoinContext) -> usize {
    peak_bytes(ctx) / OUTPUT_PART
}

/// The most that was ever held: about what there is to share out.
fn peak_bytes(ctx: &JoinContext) -> usize {
    usize::try_from(ctx.stats.peak_bytes.get()).unwrap_or(usize::MAX)
}
