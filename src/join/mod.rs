//! skeleton
mod builder;
mod stream;

use arrow::datatypes::SchemaRef;
use datafusion_common::Result;
use datafusion_execution::SendableRecordBatchStream;

pub use builder::{BuildObserver, GraceHashJoin, GraceHashJoinBuilder, JoinKeys, ResidualFilter};
pub use stream::GraceHashJoinStream;

use crate::error;
use crate::semantics::Side;
use builder::SideSpec;

/// What one partition's join consumes.
pub(crate) struct Inputs {
    pub(crate) build: SendableRecordBatchStream,
    pub(crate) probe: SendableRecordBatchStream,
    pub(crate) observer: Option<Box<dyn BuildObserver>>,
}

fn check_input(side: Side, got: &SchemaRef, spec: &SideSpec) -> Result<()> {
    for (index, field) in spec.needed.iter().zip(spec.schema.fields()) {
        let expected = field.data_type();
        if got.fields().get(*index).map(|f| f.data_type()) != Some(expected) {
            return Err(error::input_schema(side.name(), *index, expected));
        }
    }
    Ok(())
}
