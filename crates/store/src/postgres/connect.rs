//! Connections to the database: the URL, the pool, and a dedicated runtime. Each connection is a
//! task and needs a runtime. Because the store has its own runtime, callers can open and use it from
//! any other runtime, and it outlives the runtime that opened it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use tokio::runtime::{Builder, Handle};
use tokio_postgres::config::Host;
use tokio_postgres::{AsyncMessage, Client, Config};

use super::error::translate;
use super::tls::{Tls, TlsSettings};

/// Maximum number of connections per process, not counting the listener's.
const CONNECTIONS_MAX: usize = 24;
/// How long to wait for a free connection.
const WAIT_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Threads of the runtime. They only do I/O.
const THREADS: usize = 2;
/// The role that pool connections assume, if it exists. It owns nothing, so row-level security
/// applies to it.
pub(super) const ROLE: &str = "sapwood_app";

/// The name of this version's connections in `pg_stat_activity`, by the newest log format that it reads.
const APPLICATION: &str = "sapwood format 3";
/// The name of the connections of versions that read only log format 2.
pub(super) const PREVIOUS_APPLICATION: &str = "sapwood";

/// A server and its connection settings, parsed from a URL.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    tls: Tls,
    /// The address in error messages, without the password.
    pub place: Arc<str>,
}

/// The role that a connection acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DbRole {
    /// The user in the URL, who owns the tables.
    Owner,
    /// A role that row-level security applies to.
    App,
}

impl Server {
    pub fn parse(url: &str) -> Result<Self> {
        let invalid = |why: String| StoreError::Invalid { what: "the store URL", why };
        let (url, tls_settings) = TlsSettings::parse_url(url).map_err(invalid)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            invalid(format!("{error} {source}").trim().to_owned())
        })?;
        if config.get_hosts().is_empty() {
            return Err(invalid("it has no host".to_owned()));
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_MAX);
        }
        config.application_name(APPLICATION);
        config.keepalives_idle(Duration::from_secs(30));
        let tls = Tls::new(&tls_settings).map_err(invalid)?;
        let place = place_of(&config).into();
        Ok(Self { config, tls, place })
    }

    /// Builds the connection options. All queries read a few rows by key, so a sequential scan is
    /// never better. These options keep the plans efficient while the tables grow, regardless of the
    /// planner's statistics.
    fn config_for(&self, role: DbRole) -> Config {
        let mut options = self.config.get_options().unwrap_or_default().to_owned();
        options.push_str(" -c search_path=sapwood -c plan_cache_mode=force_generic_plan");
        options.push_str(" -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off");
        if role == DbRole::App {
            options.push_str(&format!(" -c role={ROLE}"));
        }
        let mut config = self.config.clone();
        config.options(options.trim());
        config
    }

    pub fn pool(&self, role: DbRole) -> Result<Pool> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(self.config_for(role), self.tls.clone(), recycling);
        Pool::builder(manager)
            .max_size(CONNECTIONS_MAX)
            .wait_timeout(Some(WAIT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Backend { place: self.place.to_string(), what: error.to_string() })
    }

    /// Opens a connection outside the pool. Calls `on_message` with each asynchronous message of the
    /// server, and with `None` when the connection ends.
    pub async fn connect(
        &self,
        role: DbRole,
        mut on_message: impl FnMut(Option<AsyncMessage>) + Send + 'static,
    ) -> Result<Client> {
        let config = self.config_for(role);
        let connecting = config.connect(self.tls.clone());
        let (client, mut connection) = connecting.await.map_err(|error| translate(&error, &self.place))?;
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                on_message(Some(message));
            }
            on_message(None);
        });
        Ok(client)
    }
}

fn place_of(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(at, host)| {
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => format!("{}:{port}", path.display()),
            }
        })
        .collect();
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    format!("postgres://{user}{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

/// The store's own runtime.
pub(super) struct StoreRuntime(Option<tokio::runtime::Runtime>);

impl StoreRuntime {
    pub fn new() -> Result<Self> {
        let failed = |source| StoreError::Io { place: "the database runtime".to_owned(), source };
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("sapwood-postgres")
            .enable_all()
            .build()
            .map_err(failed)?;
        Ok(Self(Some(runtime)))
    }

    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("the runtime exists until it is dropped").handle()
    }

    /// Wraps a future so that it uses this runtime's timers and sockets, regardless of the runtime
    /// that polls it.
    pub fn wrap<F: Future>(&self, work: F) -> WrappedFuture<F> {
        WrappedFuture { handle: self.handle().clone(), work: Box::pin(work) }
    }

    /// Blocks on a future, even inside another runtime.
    pub fn block_on<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.handle().block_on(work));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for StoreRuntime {
    /// Does not wait for running tasks, because a task of another runtime may drop the store.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) struct WrappedFuture<F> {
    handle: Handle,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for WrappedFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let handle = self.handle.clone();
        let _entered = handle.enter();
        self.work.as_mut().poll(cx)
    }
}
