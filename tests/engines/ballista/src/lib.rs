//! `grace-hash-join` on Ballista: a scheduler and executors in one process, whose executors make the
//! joins of their tasks spillable.
//!
//! What using the crate there takes is [`GraceEngine`], which an executor process gets as
//! `ExecutorProcessConfig::override_execution_engine` (or, where that cannot be set, [`GraceHookCodec`]
//! as its physical codec), the extension in [`config`] on both sides, and the client's settings in
//! [`Client`]; the rest starts the cluster.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista::prelude::{SessionConfigExt, SessionContextExt};
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::ids::{JobId, new_instance_id};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::protobuf::ExecutorRegistration;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_core::serde::scheduler::{
    ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use ballista_core::serde::{
    BallistaCodec, BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec,
};
use ballista_core::utils::{GrpcServerConfig, create_grpc_server, default_session_builder};
use ballista_core::{BALLISTA_PROTOCOL_VERSION, RuntimeProducer};
use ballista_executor::execution_engine::{
    DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor,
};
use ballista_executor::execution_loop;
use ballista_executor::executor::Executor;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::health::ExecutorHealth;
use ballista_executor::metrics::LoggingMetricsCollector;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::metrics::default_metrics_collector;
use ballista_scheduler::scheduler_server::SchedulerServer;
use datafusion::error::Result;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use engines_testbed::joins::Joins;
use grace_hash_join::{GraceHashJoinOptions, rewrite_task_plan};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;

/// Another engine, usually Ballista's own, with the joins of each task made spillable.
pub struct GraceEngine {
    inner: Arc<dyn ExecutionEngine>,
}

impl GraceEngine {
    /// What an executor needs around its engine.
    #[must_use]
    pub fn around(inner: Arc<dyn ExecutionEngine>) -> Self {
        Self { inner }
    }
}

impl ExecutionEngine for GraceEngine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let plan = rewrite_task_plan(plan, config.options())?;
        self.inner.create_query_stage_exec(
            job_id,
            stage_id,
            task_id,
            global_output_partition_ids,
            plan,
            work_dir,
            config,
        )
    }
}

/// The other hook: Ballista's codec, for executors only. The top of each stage is a node of
/// Ballista's own, so what is below it comes by here once it is decoded.
#[derive(Debug, Default)]
pub struct GraceHookCodec {
    inner: BallistaPhysicalExtensionCodec,
}

impl PhysicalExtensionCodec for GraceHookCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ctx.session_config().options();
        let inputs = inputs.iter();
        let inputs = inputs.map(|input| rewrite_task_plan(Arc::clone(input), options));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        self.inner.try_decode(buf, &inputs, ctx, proto_converter)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        self.inner.try_encode(node, buf, proto_converter)
    }
}

/// The configuration that scheduler and executors start from. Both must know this crate's options, or
/// what a client sets is dropped on the way without a word.
#[must_use]
pub fn config() -> SessionConfig {
    let config = SessionConfig::new_with_ballista()
        .with_option_extension(GraceHashJoinOptions::default())
        // Small files are scanned by several tasks too.
        .set_usize("datafusion.optimizer.repartition_file_min_size", 0);
    // DataFusion 55.2's own exchange can wait for ever for a spill file that is still open.
    config.set_u64("datafusion.execution.max_spill_file_size_bytes", 1)
}

/// What a client sets.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Ballista's planner that looks at each stage's real sizes before it plans the next (its default),
    /// or the one that plans once.
    pub is_adaptive: bool,
    /// Whether joins are hash joins in spite of Ballista's defaults, which know that DataFusion's
    /// cannot spill.
    pub prefers_hash_join: bool,
    /// Above how many bytes of its largest build partition the adaptive planner prefers a sort-merge
    /// join after all; 0 for never.
    pub sort_merge_bytes: usize,
    /// Below how many bytes a build side goes to every task instead of being partitioned.
    pub broadcast_bytes: usize,
    /// Output partitions of each exchange.
    pub partitions: usize,
}

impl Client {
    /// The settings, as an application would make them.
    #[must_use]
    pub fn config(self, options: GraceHashJoinOptions) -> SessionConfig {
        let config = config()
            .with_option_extension(options)
            .with_target_partitions(self.partitions)
            .with_ballista_adaptive_query_planner(self.is_adaptive)
            .with_ballista_broadcast_join_threshold_bytes(self.broadcast_bytes)
            .set_usize(
                "datafusion.optimizer.hash_join_single_partition_threshold",
                self.broadcast_bytes,
            );
        let config = match self.broadcast_bytes {
            0 => config
                .with_ballista_broadcast_join_threshold_rows(0)
                .set_usize(
                    "datafusion.optimizer.hash_join_single_partition_threshold_rows",
                    0,
                ),
            _ => config,
        };
        match self.prefers_hash_join {
            // One for each planner.
            true => config
                .set_bool("datafusion.optimizer.prefer_hash_join", true)
                .with_ballista_hash_join_max_build_partition_bytes(self.sort_merge_bytes),
            false => config,
        }
    }

    /// A session with these settings.
    ///
    /// # Errors
    /// If the scheduler does not answer.
    pub async fn session(
        self,
        scheduler: SocketAddr,
        options: GraceHashJoinOptions,
    ) -> Result<SessionContext> {
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(self.config(options))
            .build();
        let url = format!("df://localhost:{}", scheduler.port());
        SessionContext::remote_with_state(&url, state).await
    }
}

/// How executors are set up.
#[derive(Clone, Copy, Debug)]
pub struct Executors {
    /// How many.
    pub count: usize,
    /// Partitions that each runs at a time.
    pub vcores: usize,
    /// The memory pool of each task, in bytes.
    pub task_memory: usize,
    /// How this crate comes in.
    pub hook: Hook,
}

/// Two of two cores, with as much memory as they want, and the hook that this crate recommends.
impl Default for Executors {
    fn default() -> Self {
        Self {
            count: 2,
            vcores: 2,
            task_memory: 256 << 20,
            hook: Hook::Engine,
        }
    }
}

/// Hash joins by the adaptive planner, over partitioned sides whatever their sizes.
impl Default for Client {
    fn default() -> Self {
        Self {
            is_adaptive: true,
            prefers_hash_join: true,
            sort_merge_bytes: 0,
            broadcast_bytes: 0,
            partitions: 4,
        }
    }
}

/// How the joins of a task are made spillable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Not at all: Ballista as it is.
    None,
    /// By [`GraceEngine`].
    Engine,
    /// By [`GraceHookCodec`].
    Codec,
}

/// A scheduler and executors in this process.
pub struct Cluster {
    scheduler: SocketAddr,
    directories: Vec<TempDir>,
    tasks: Vec<JoinHandle<()>>,
    joins: Joins,
}

impl Cluster {
    /// Starts the cluster.
    ///
    /// # Errors
    /// If there are no ports or directories.
    pub async fn start(executors: Executors) -> engines_testbed::Result<Self> {
        let mut cluster = Self {
            scheduler: start_scheduler(SchedulerConfig::default()).await?,
            directories: vec![],
            tasks: vec![],
            joins: Joins::default(),
        };
        for _ in 0..executors.count {
            let directory = TempDir::new()?;
            let joins = cluster.joins.clone();
            let tasks =
                start_executor(cluster.scheduler, directory.path(), executors, joins).await?;
            cluster.tasks.extend(tasks);
            cluster.directories.push(directory);
        }
        Ok(cluster)
    }

    /// A client's session.
    ///
    /// # Errors
    /// If the scheduler does not answer.
    pub async fn session(
        &self,
        client: Client,
        options: GraceHashJoinOptions,
    ) -> Result<SessionContext> {
        client.session(self.scheduler, options).await
    }

    /// The joins that the executors' tasks had.
    #[must_use]
    pub fn joins(&self) -> &Joins {
        &self.joins
    }

    /// The executors' directories, of shuffle files and of spill files.
    #[must_use]
    pub fn directories(&self) -> &[TempDir] {
        &self.directories
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// What `ballista_scheduler::standalone::new_standalone_scheduler_with_builder` does, which takes no
/// configuration of the scheduler: one that executors ask for work.
///
/// # Errors
/// If there is no port.
pub async fn start_scheduler(config: SchedulerConfig) -> engines_testbed::Result<SocketAddr> {
    let name = "localhost:50050";
    let state = BallistaCluster::new_memory(
        name,
        Arc::new(default_session_builder),
        Arc::new(self::config),
    );
    let policy = TaskSchedulingPolicy::PullStaged;
    let mut server: SchedulerServer<LogicalPlanNode, PhysicalPlanNode> = SchedulerServer::new(
        name.to_owned(),
        state,
        BallistaCodec::default(),
        Arc::new(config.with_scheduler_policy(policy)),
        default_metrics_collector()?,
    );
    server.init().await?;
    let bytes = self::config().ballista_grpc_client_max_message_size();
    let server = SchedulerGrpcServer::new(server)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let listener = TcpListener::bind("localhost:0").await?;
    let address = listener.local_addr()?;
    let server = create_grpc_server(&GrpcServerConfig::default()).add_service(server);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok(address)
}

/// What `ballista_executor::new_standalone_executor_from_builder` does, which takes no engine.
/// `executors.count` says nothing here. Returns the tasks that the executor consists of.
///
/// # Errors
/// If there is no port, or no scheduler.
pub async fn start_executor(
    scheduler: SocketAddr,
    directory: &Path,
    executors: Executors,
    joins: Joins,
) -> engines_testbed::Result<[JoinHandle<()>; 2]> {
    let listener = TcpListener::bind("localhost:0").await?;
    let registration = ExecutorRegistration {
        id: new_instance_id(),
        host: Some("localhost".to_owned()),
        port: listener.local_addr()?.port().into(),
        grpc_port: 0,
        specification: Some(
            ExecutorSpecification::default()
                .with_vcores(u32::try_from(executors.vcores)?)
                .into(),
        ),
        os_info: Some(ExecutorOperatingSystemSpecification::default().into()),
        ballista_protocol_version: BALLISTA_PROTOCOL_VERSION,
    };
    let work_dir = directory.to_str().ok_or("a path that is not UTF-8")?;
    let (engine, codec) = executors.hook.put_in(joins);
    let executor = Executor::new(
        registration,
        work_dir,
        task_runtimes(executors.task_memory, work_dir),
        Arc::new(config),
        Arc::new(BallistaFunctionRegistry::default()),
        Arc::new(LoggingMetricsCollector::default()),
        executors.vcores,
        engine,
    );
    let service = FlightServiceServer::new(BallistaFlightService::new(work_dir.to_owned()));
    let server = create_grpc_server(&GrpcServerConfig::default()).add_service(service);
    let serving = tokio::spawn(async move {
        // It ends with the test.
        let _ = server
            .serve_with_incoming(TcpListenerStream::new(listener))
            .await;
    });
    let client = SchedulerGrpcClient::connect(format!("http://{scheduler}")).await?;
    let polling = tokio::spawn(poll(client, Arc::new(executor), codec));
    Ok([serving, polling])
}

impl Hook {
    /// The engine and the codec of an executor.
    fn put_in(self, joins: Joins) -> (Arc<dyn ExecutionEngine>, Arc<dyn PhysicalExtensionCodec>) {
        let stock = Watched {
            inner: DefaultExecutionEngine::new(),
            joins,
        };
        let codec = BallistaPhysicalExtensionCodec::default();
        match self {
            Self::None => (Arc::new(stock), Arc::new(codec)),
            Self::Engine => (
                Arc::new(GraceEngine::around(Arc::new(stock))),
                Arc::new(codec),
            ),
            Self::Codec => (Arc::new(stock), Arc::new(GraceHookCodec::default())),
        }
    }
}

async fn poll(
    client: SchedulerGrpcClient<Channel>,
    executor: Arc<Executor>,
    codec: Arc<dyn PhysicalExtensionCodec>,
) {
    let logical = Arc::new(BallistaLogicalExtensionCodec::default());
    let codec: BallistaCodec = BallistaCodec::new(logical, codec);
    let health = ExecutorHealth::new();
    // It ends with the test.
    let _ = execution_loop::poll_loop(client, executor, codec, None, None, health).await;
}

/// An executor calls it once for each task: so each task has a pool of its own. An executor process
/// does the same by itself, with `--memory-pool-size` over `--vcores`.
fn task_runtimes(task_memory: usize, work_dir: &str) -> RuntimeProducer {
    let spill_dir = work_dir.to_owned();
    Arc::new(move |_| {
        RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(task_memory)))
            .with_temp_file_path(&spill_dir)
            .build_arc()
    })
}

/// Ballista's engine, for somebody who wants to know what joins it is given.
struct Watched {
    inner: DefaultExecutionEngine,
    joins: Joins,
}

impl ExecutionEngine for Watched {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        self.joins.watch(&plan);
        self.inner.create_query_stage_exec(
            job_id,
            stage_id,
            task_id,
            global_output_partition_ids,
            plan,
            work_dir,
            config,
        )
    }
}
