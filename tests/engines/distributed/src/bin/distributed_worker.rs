//! A worker as a process of its own: prints where it answers, and does so until it is killed.
//!
//! ```sh
//! cargo run --manifest-path tests/engines/Cargo.toml -p grace-hash-join-distributed \
//!     --bin distributed_worker -- target/spill 64
//! ```
//!
//! Arguments: the directory for spill files, MiB for each task.

use std::net::TcpListener;
use std::path::Path;

use engines_testbed::Result;
use grace_hash_join_distributed::{serve, url_of, worker};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().ok_or("no directory for spill files")?;
    let memory: usize = args.next().ok_or("no memory for a task")?.parse()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", url_of(&listener)?);
    let worker = worker(Path::new(&directory), memory << 20, None);
    serve(worker, listener).await
}
