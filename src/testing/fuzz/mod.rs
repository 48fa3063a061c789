//! What the fuzz targets do, so that `cargo test` does it too.
//!
//! Job: structured inputs, decoded from bytes by `arbitrary`, each with a [`Target::check`] that
//! says what went wrong, and a `Debug` that prints a test to paste. A target in `fuzz/` is three
//! lines over this module, and `tests/it/regressions.rs` replays the committed inputs through
//! [`replay`], with the same decoding. Invariant: a check is a pure function of its input.
//!
//! | target | what is held against what |
//! |---|---|
//! | [`Join`] | the operator against the oracle, over data, spilling, sizes, collisions |
//! | [`Faults`] | the operator under refusals, failures, early drop against "right, or one error" |
//! | [`Chain`] | the hash table against a map of lists, cut and skipped anywhere |
//! | [`Scatter`] | rows by bucket against "each once, in order, evenly" |
//! | [`SpillBytes`] | damaged spill files against "the right rows, or an error" |

mod chain;
mod choices;
mod faults;
mod join;
mod paste;
mod query;
mod scatter;
mod spill_bytes;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use datafusion_common::Result;
use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, UnboundedMemoryPool,
};

pub use chain::{Chain, Step};
pub use faults::{Drop, Faults};
pub use join::Join;
pub use query::{Engine, Pool, Query};
pub use scatter::Scatter;
pub use spill_bytes::{Damage, SpillBytes};

use super::faults::{FaultyFiles, FileFault};
use super::memory_files::MemoryFiles;
use super::run::{Environment, within};

/// How long one input may take: each is small.
const WATCHDOG: Duration = Duration::from_mins(1);

/// An input of a fuzz target, and what must hold for it.
pub trait Target: for<'a> Arbitrary<'a> + fmt::Debug + Send + 'static {
    /// What the target and its corpus are called.
    const NAME: &'static str;

    /// Runs it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// What went wrong.
    fn check(&self) -> impl Future<Output = Result<(), String>>;
}

/// Runs an input in this thread's runtime.
///
/// # Errors
/// What went wrong, with a test to paste.
pub fn run(input: &impl Target) -> Result<(), String> {
    thread_local! {
        /// Made once: an input takes less time than a runtime.
        static RUNTIME: std::io::Result<tokio::runtime::Runtime> =
            tokio::runtime::Builder::new_current_thread().build();
    }
    let checked = RUNTIME.with(|runtime| match runtime {
        Ok(runtime) => runtime.block_on(input.check()),
        Err(error) => Err(error.to_string()),
    });
    checked.map_err(|reason| format!("{reason}\n\n{input:?}"))
}

/// Runs the bytes of a corpus file through the target of this name, under a watchdog. Bytes that
/// make no input are no failure, as for the fuzzer.
///
/// # Errors
/// What went wrong, with a test to paste, or that there is no such target.
pub fn replay(target: &str, bytes: &[u8]) -> Result<(), String> {
    match target {
        Join::NAME => replay_as::<Join>(bytes),
        Faults::NAME => replay_as::<Faults>(bytes),
        Chain::NAME => replay_as::<Chain>(bytes),
        Scatter::NAME => replay_as::<Scatter>(bytes),
        SpillBytes::NAME => replay_as::<SpillBytes>(bytes),
        _ => Err(format!("there is no target {target}")),
    }
}

fn replay_as<T: Target>(bytes: &[u8]) -> Result<(), String> {
    let Ok(input) = T::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return Ok(());
    };
    let text = format!("{input:?}");
    let checked = within(WATCHDOG, move || async move { input.check().await });
    checked
        .and_then(|checked| checked)
        .map_err(|reason| format!("{reason}\n\n{text}"))
}

/// What a run finds around itself: files in memory that may go wrong, and a pool.
#[derive(Debug)]
struct Around {
    environment: Environment,
    memory: Arc<MemoryFiles>,
    files: Arc<FaultyFiles>,
}

impl Around {
    fn new(
        pool: Arc<dyn MemoryPool>,
        batch_size: usize,
        (chunk, fault): (usize, FileFault),
    ) -> Result<Self, String> {
        let memory = MemoryFiles::new(chunk);
        let disk = memory.disk().map_err(|error| error.to_string())?;
        let files = FaultyFiles::over(disk, fault);
        let environment = Environment::with_files(pool, batch_size, &files);
        Ok(Self {
            environment: environment.map_err(|error| error.to_string())?,
            memory,
            files,
        })
    }

    /// Waits until no memory is reserved and no file is left.
    async fn becomes_clean(&self) -> Result<(), String> {
        self.environment.becomes_clean().await?;
        let start = Instant::now();
        while self.memory.live() > 0 {
            if start.elapsed() > Duration::from_secs(1) {
                return Err(format!("{} files are left behind", self.memory.live()));
            }
            std::thread::sleep(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

impl Pool {
    fn make(self) -> Arc<dyn MemoryPool> {
        match self {
            Self::Unlimited => Arc::new(UnboundedMemoryPool::default()),
            Self::Greedy(bytes) => Arc::new(GreedyMemoryPool::new(bytes)),
            Self::Fair(bytes) => Arc::new(FairSpillPool::new(bytes)),
        }
    }
}
