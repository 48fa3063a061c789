//! The oracle, the case space, seeded data and fault injection. Not a stable interface.
//!
//! Job: what tests, benches and fuzz targets share. A [`Case`] is one point of the case space; it
//! makes its own data, knows its join and its surroundings, and is found again by its name. The
//! [`oracle`] says what must come out, [`run`] runs the operator and looks at what it left behind,
//! [`faults`] makes the n-th call of a pool, a file or an input go wrong.
//!
//! Not its job: deciding what is right by looking at the operator. The oracle shares no code with
//! it, not even the table of join types.
//!
//! ```
//! use grace_hash_join::testing::{Case, check};
//!
//! // The name that a failing test prints is all that it takes to run the case again.
//! let case = Case::from_name("LeftAnti/nothing/both/half/Int64/mixed/3/42")?;
//! check(&case, &case.expected()?)?;
//! # Ok::<(), grace_hash_join::testing::Failure>(())
//! ```

pub mod cases;
pub mod data;
pub mod faults;
pub mod filters;
pub mod fuzz;
pub mod keys;
pub mod memory_files;
pub mod oracle;
pub mod parts;
pub mod payloads;
pub mod render;
pub mod rng;
pub mod run;
pub mod spill_speed;

pub use cases::{Case, JOIN_TYPES, NULL_EQUALITIES, Pressure, Shape};
pub use data::{Layout, Names, Spread, Table, TableSpec};
pub use faults::{FaultyFiles, FaultyInput, FileFault, InputFault, RefusingPool};
pub use filters::FilterKind;
pub use keys::KeyKind;
pub use memory_files::MemoryFiles;
pub use oracle::{Question, Rows};
pub use payloads::PayloadKind;
pub use rng::Rng;
pub use run::{Environment, Failure, Outcome, Spills, check, collect, within};
