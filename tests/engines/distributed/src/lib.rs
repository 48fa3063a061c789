//! `grace-hash-join` on `datafusion-distributed`: a cluster in one process whose workers make the
//! joins of their tasks spillable.
//!
//! What using the crate there takes is [`worker_session`] and [`options_of`]; the rest starts workers
//! and stops them.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{
    DistributedExt, DistributedMetricsFormat, SessionStateBuilderExt, Worker,
    WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse, WorkerQueryContext, WorkerResolver,
    rewrite_distributed_plan_with_metrics,
};
use engines_testbed::joins::Joins;
use grace_hash_join::{GraceHashJoinCodec, GraceHashJoinOptions, rewrite_task_plan};
use http::HeaderMap;
use tempfile::TempDir;
use tonic::transport::Server;
use url::Url;

/// What the coordinator writes in front of each entry of an extension with this crate's prefix.
const OPTION_HEADER: &str = "x-datafusion-distributed-config-grace_hash_join.";

/// The options that came with a query.
///
/// The engine's own `with_distributed_option_extension_from_headers` would drop them: it looks for
/// keys without their prefix in `entries()`, where `SHOW` needs them with it.
///
/// # Errors
/// A configuration error for a key or a value that is none.
pub fn options_of(headers: &HeaderMap) -> Result<GraceHashJoinOptions> {
    let mut options = GraceHashJoinOptions::default();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(OPTION_HEADER) {
            let value = value.to_str();
            let value = value.map_err(|e| DataFusionError::External(Box::new(e)))?;
            options = options.with(key, value)?;
        }
    }
    Ok(options)
}

/// The session of one task: with the client's options, a memory pool of the task's own, and a hook
/// that makes the joins of the decoded plan spillable.
///
/// # Errors
/// A configuration error for bad options.
pub fn worker_session(
    context: WorkerQueryContext,
    runtime: Arc<RuntimeEnv>,
    watch: Option<Joins>,
) -> Result<SessionState> {
    let options = options_of(&context.headers)?;
    let mut builder = context.builder;
    let config = builder.config().get_or_insert_default().options_mut();
    config.extensions.insert(options);
    // DataFusion 55.2's own exchange can wait for ever for a spill file that is still open.
    config.set("datafusion.execution.max_spill_file_size_bytes", "1")?;
    let state = builder
        .with_runtime_env(runtime)
        // For plans that have the node already when they come.
        .with_distributed_user_codec(GraceHashJoinCodec::default())
        .with_distributed_worker_plan_rewrite_handler(move |event: WorkerPlanRewriteEvent<'_>| {
            let plan = rewrite_task_plan(event.plan, event.session_config.options())?;
            if let Some(joins) = &watch {
                joins.watch(&plan);
            }
            Ok(WorkerPlanRewriteEventResponse::new(plan))
        })
        .build();
    Ok(state)
}

/// A worker whose tasks have `task_memory` bytes each, and spill into `directory`.
#[must_use]
pub fn worker(directory: &Path, task_memory: usize, watch: Option<Joins>) -> Worker {
    let directory = directory.to_path_buf();
    Worker::from_session_builder(move |context: WorkerQueryContext| {
        // The session is built for one task, so this is the task's pool. A worker that shares one
        // pool among its tasks gives it to `Worker::with_runtime_env` instead.
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(task_memory)))
            .with_temp_file_path(&directory)
            .build_arc();
        let state = runtime.and_then(|r| worker_session(context, r, watch.clone()));
        async move { state }
    })
}

/// Lets a worker answer at `listener`, for good.
///
/// # Errors
/// If it cannot.
pub async fn serve(worker: Worker, listener: TcpListener) -> engines_testbed::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = Server::builder().add_service(worker.into_worker_server());
    Ok(server.serve_with_incoming(incoming).await?)
}

/// Where a worker answers.
///
/// # Errors
/// If `listener` is at no port.
pub fn url_of(listener: &TcpListener) -> Result<Url> {
    let url = format!("http://{}", listener.local_addr()?);
    Url::parse(&url).map_err(|e| DataFusionError::External(Box::new(e)))
}

/// A client's session with the workers at `urls`, whose options go with each query.
///
/// # Errors
/// Never for options that are valid.
pub fn client(
    urls: Vec<Url>,
    config: SessionConfig,
    options: GraceHashJoinOptions,
) -> Result<SessionContext> {
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_distributed_planner()
        .with_distributed_worker_resolver(Urls(urls))
        .with_distributed_option_extension(options)
        .with_distributed_user_codec(GraceHashJoinCodec::default())
        // However small the files, every worker gets a part of them.
        .with_distributed_file_scan_config_bytes_per_partition(1)?
        .build();
    Ok(SessionContext::from(state))
}

/// A worker of the cluster, on threads of its own.
struct Member {
    url: Url,
    directory: TempDir,
    /// `None` once it is stopped.
    threads: Option<tokio::runtime::Runtime>,
}

/// Workers in this process, behind ports of this machine.
pub struct Cluster {
    members: Vec<Member>,
    joins: Joins,
}

/// How workers are set up.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// How many.
    pub count: usize,
    /// The memory pool of each task, in bytes.
    pub task_memory: usize,
    /// Whether [`Cluster::joins`] sees the plans, and so keeps them until it is asked.
    pub is_watched: bool,
}

/// Two, with as much memory as they want.
impl Default for Workers {
    fn default() -> Self {
        Self {
            count: 2,
            task_memory: 256 << 20,
            is_watched: true,
        }
    }
}

impl Cluster {
    /// Starts workers.
    ///
    /// # Errors
    /// If there are no ports, threads or directories.
    pub fn start(workers: Workers) -> Result<Self> {
        let joins = Joins::default();
        let watch = workers.is_watched.then(|| joins.clone());
        let members = 0..workers.count;
        let members = members.map(|_| Member::start(workers.task_memory, watch.clone()));
        Ok(Self {
            members: members.collect::<Result<_>>()?,
            joins,
        })
    }

    /// The joins that the workers' tasks had.
    #[must_use]
    pub fn joins(&self) -> &Joins {
        &self.joins
    }

    /// Where a worker's tasks spill to.
    #[must_use]
    pub fn directory(&self, worker: usize) -> &Path {
        self.members[worker].directory.path()
    }

    /// Stops a worker in whatever it does: its threads end, and with them all that they own.
    pub fn stop(&mut self, worker: usize) {
        if let Some(threads) = self.members[worker].threads.take() {
            threads.shutdown_background();
        }
    }

    /// A client's session, whose options go with each query.
    ///
    /// # Errors
    /// Never for options that are valid.
    pub fn session(
        &self,
        config: SessionConfig,
        options: GraceHashJoinOptions,
    ) -> Result<SessionContext> {
        let urls = self.members.iter().map(|m| m.url.clone());
        client(urls.collect(), config, options)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for worker in 0..self.members.len() {
            self.stop(worker);
        }
    }
}

impl Member {
    fn start(task_memory: usize, watch: Option<Joins>) -> Result<Self> {
        let directory = TempDir::new()?;
        let worker = worker(directory.path(), task_memory, watch);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = url_of(&listener)?;
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        threads.spawn(serve(worker, listener));
        Ok(Self {
            url,
            directory,
            threads: Some(threads),
        })
    }
}

struct Urls(Vec<Url>);

impl WorkerResolver for Urls {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

/// The plan that was executed, with what the workers' tasks counted, all tasks together.
///
/// The coordinator shows the plan that it made, so a join that was replaced is still called
/// `HashJoinExec` there; its counters are those of the node that ran.
///
/// # Errors
/// If the plan was not executed.
pub async fn with_metrics(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    rewrite_distributed_plan_with_metrics(plan, DistributedMetricsFormat::Aggregated).await
}
