//! The join itself: build, probe, drain. The only orchestrator, and the only asynchronous part
//! besides spill files.
//!
//! ```text
//! build   buffer batches -> refused? -> split into buckets, give up the largest -> ...
//! probe   row of a resident bucket: join now          row of a spilled bucket: to its run
//! drain   for each pair of runs, smallest first: load and join | split | join in chunks
//! ```
//!
//! Each phase is a function that consumes what the phase before it left behind, so "probe before
//! build" does not compile. Data is in enums that own it: a bucket is resident, with its rows and
//! the lease on them, or spilled, with its writer.
//!
//! | file | what it does |
//! |---|---|
//! | `builder` | what a join is, validated |
//! | `stream` | the output stream: starts [`run`], carries the counters |
//! | `build`, `split` | the build phase, before and after the first refusal |
//! | `resident`, `space` | a bucket in memory; what covers buffers, the queue of writes, and readers |
//! | `victim` | which buckets go to disk |
//! | `patience` | waiting for a floor that others hold |
//! | `probe`, `scan`, `lookup` | routing probe rows; one streamed batch against the loaded rows |
//! | `drain`, `chunked` | pairs of runs; the skew fallback |
//! | `null_aware` | what NOT IN does besides |
//! | `loaded`, `columns` | rows with their table; their columns |
//! | `assemble`, `output` | output batches; handing out |
//!
//! # Memory
//!
//! Everything that is held is covered by a lease on the partition's one reservation, taken before
//! the data is made, or, for the input batch in hand, charged as soon as it is seen. Dropping the
//! stream drops the data, the leases and the files, in every state: there is no clean-up code. Rows
//! that wait to be written are given up with their run; a write in flight finishes first, and what it
//! holds, the working space among it, goes with it.
//!
//! # Degenerate cases
//!
//! - *Empty build side*: the probe input is not polled at all where nothing could come out.
//! - *Limit reached*: every phase stops in good order, and inputs are dropped unread.
//! - *A failing input, filter, read or write*: one `Err`, then the end.

#![deny(clippy::indexing_slicing)]

mod assemble;
mod build;
mod builder;
mod chunked;
mod columns;
mod context;
mod drain;
mod loaded;
mod lookup;
mod null_aware;
mod output;
mod patience;
mod probe;
mod resident;
mod scan;
mod space;
mod split;
mod stream;
mod victim;

use arrow::datatypes::SchemaRef;
use datafusion_common::Result;
use datafusion_execution::SendableRecordBatchStream;

pub use builder::{BuildObserver, GraceHashJoin, GraceHashJoinBuilder, JoinKeys, ResidualFilter};
pub use stream::GraceHashJoinStream;

use crate::error;
use crate::semantics::Side;
use builder::SideSpec;
use context::JoinContext;
use output::{Flow, Output};
use probe::Drainable;

/// What one partition's join consumes.
pub(crate) struct Inputs {
    pub(crate) build: SendableRecordBatchStream,
    pub(crate) probe: SendableRecordBatchStream,
    pub(crate) observer: Option<Box<dyn BuildObserver>>,
}

/// One partition's join, from the first batch to the last.
async fn run(ctx: &JoinContext, inputs: Inputs, out: &mut Output) -> Result<()> {
    let Inputs {
        build: build_input,
        probe: probe_input,
        observer,
    } = inputs;
    if out.flow() == Flow::Enough {
        return Ok(());
    }
    let built = build::build(ctx, build_input, observer, out).await?;
    let left = probe::probe(ctx, built, probe_input, out).await?;
    if let Drainable::Pairs(space, pairs) = left {
        drain::drain(ctx, &space, pairs, out).await?;
    }
    out.finish().await
}

/// Whether an input has the columns that the join was built for.
fn check_input(side: Side, got: &SchemaRef, spec: &SideSpec) -> Result<()> {
    for (index, field) in spec.needed.iter().zip(spec.schema.fields()) {
        let expected = field.data_type();
        if got.fields().get(*index).map(|f| f.data_type()) != Some(expected) {
            return Err(error::input_schema(side.name(), *index, expected));
        }
    }
    Ok(())
}
