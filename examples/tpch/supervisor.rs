//! Starts a process for one engine and one query, watches it, and ends it in time.
//!
//! A process of its own makes the peak of its memory its own, and lets a hang, a crash or a visit
//! of the out-of-memory killer be one row of the report. It is this program again, with the same
//! command line and a few options more.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::Result;
use crate::args::Args;
use crate::engine::Engine;
use crate::worker::{self, Outcome};

/// How often a running worker is looked at. Times are measured inside the worker.
const POLL: Duration = Duration::from_millis(10);

/// What the names of directories of runs begin with.
const PREFIX: &str = "tpch-";

/// Makes the directory of a run of this program, in which each worker gets one of its own.
pub(crate) fn run_directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix(PREFIX).tempdir()?)
}

/// Whether this looks like such a directory, which one may remove.
pub(crate) fn is_run_directory(path: &Path) -> bool {
    let name = path.file_name();
    name.is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// The file of the answer in a worker's directory.
pub(crate) fn answer_in(directory: &Path) -> PathBuf {
    directory.join("answer.arrows")
}

/// What a worker left.
pub(crate) struct Finished {
    /// What it reported, or what was seen from outside.
    pub(crate) outcome: Outcome,
    directory: TempDir,
}

impl Finished {
    /// The file of the answer; it lives as long as this value.
    pub(crate) fn answer(&self) -> PathBuf {
        answer_in(self.directory.path())
    }
}

/// One query with one engine.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    /// The engine.
    pub(crate) engine: Engine,
    /// Which of the selected queries.
    pub(crate) query: usize,
}

/// Runs a task in a new process. Dropping the future ends the process and removes its files.
pub(crate) async fn run(task: Task, args: &Args, run_directory: &Path) -> Result<Finished> {
    let directory = TempDir::new_in(run_directory)?;
    let mut worker = Worker::start(task, directory.path())?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = worker.child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() >= args.timeout() {
            break None;
        }
        tokio::time::sleep(POLL).await;
    };
    let outcome = match status {
        Some(status) => worker.finish(status).await?,
        None => Outcome {
            error: Some(format!(
                "Timeout: killed after {} s",
                args.timeout().as_secs()
            )),
            seconds: Some(start.elapsed().as_secs_f64()),
            process_peak: worker::process_peak(&worker.child.id().to_string()),
            ..Outcome::default()
        },
    };
    drop(worker);
    Ok(Finished { outcome, directory })
}

/// A process that is killed when this is dropped, and what it says.
struct Worker {
    child: Child,
    output: JoinHandle<String>,
    complaints: JoinHandle<String>,
}

impl Worker {
    fn start(task: Task, directory: &Path) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command
            .args(env::args_os().skip(1))
            .arg("--worker-engine")
            .arg(task.engine.to_string())
            .arg("--worker-query")
            .arg(task.query.to_string())
            .arg("--worker-directory")
            .arg(directory)
            // Where DataFusion spills: one of these says where temporary files belong.
            .envs(["TMPDIR", "TMP", "TEMP"].map(|name| (name, directory)))
            // Kept open and never written to: it ends when this process does.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A ctrl-c on the terminal is for the main process, which ends the worker in order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let output = read_all(child.stdout.take());
        let complaints = read_all(child.stderr.take());
        Ok(Self {
            child,
            output,
            complaints,
        })
    }

    /// What a worker that ended has to say.
    async fn finish(&mut self, status: ExitStatus) -> Result<Outcome> {
        let output = (&mut self.output).await?;
        let complaints = (&mut self.complaints).await?;
        let report = output.lines().last().map(serde_json::from_str);
        Ok(match report {
            Some(Ok(json)) if status.success() => Outcome::from_json(&json),
            _ => Outcome {
                error: Some(format!("The process died: {status}\n{complaints}")),
                ..Outcome::default()
            },
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program's file; on Linux a name that stays right when the file is built anew meanwhile.
fn this_program() -> Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.to_owned());
    }
    Ok(env::current_exe()?)
}

/// Reads a pipe to its end on a thread, so that the worker never waits for its reader.
fn read_all<R: Read + Send + 'static>(pipe: Option<R>) -> JoinHandle<String> {
    spawn_blocking(move || {
        let mut bytes = vec![];
        if let Some(mut pipe) = pipe {
            // What was read before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
