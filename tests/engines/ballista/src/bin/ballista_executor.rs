//! An executor as a process of its own: asks a scheduler for work until it is killed.
//!
//! Arguments: the scheduler's address, the directory for shuffle and spill files, MiB for each task.

use std::path::Path;

use engines_testbed::Result;
use engines_testbed::joins::Joins;
use grace_hash_join_ballista::{Executors, Hook, start_executor};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let scheduler = args.next().ok_or("no address of a scheduler")?.parse()?;
    let directory = args.next().ok_or("no directory")?;
    let memory: usize = args.next().ok_or("no memory for a task")?.parse()?;
    let executors = Executors {
        task_memory: memory << 20,
        hook: Hook::Engine,
        ..Executors::default()
    };
    let joins = Joins::default();
    for task in start_executor(scheduler, Path::new(&directory), executors, joins).await? {
        task.await?;
    }
    Ok(())
}
