//! Connecting to the database: parsing the URL, the pool, and a dedicated runtime. Connections are
//! tasks and need a runtime. With its own runtime, a store can be opened and used from any other
//! runtime, and outlives the runtime that opened it.

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
use super::tls::{Terms, Tls};

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

/// A server and its connection settings, parsed from a URL.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    tls: Tls,
    /// For error messages, without the password.
    pub place: Arc<str>,
}

/// The role that a connection acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acting {
    /// The user in the URL, who owns the tables.
    Owner,
    /// A role that row-level security applies to.
    Fenced,
}

impl Server {
    pub fn parse(url: &str) -> Result<Self> {
        let invalid = |why: String| StoreError::Invalid { what: "the store URL", why };
        let (url, terms) = Terms::take_from(url).map_err(invalid)?;
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
        config.application_name("sapwood");
        config.keepalives_idle(Duration::from_secs(30));
        let tls = Tls::new(&terms).map_err(invalid)?;
        let place = place_of(&config).into();
        Ok(Self { config, tls, place })
    }

    /// Builds the connection options. All queries read a few rows by key, so a sequential scan is
    /// never better. With these options, plans stay right while the tables grow, regardless of the
    /// statistics.
    fn config_for(&self, acting: Acting) -> Config {
        let mut options = self.config.get_options().unwrap_or_default().to_owned();
        options.push_str(" -c search_path=sapwood -c plan_cache_mode=force_generic_plan");
        options.push_str(" -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off");
        if acting == Acting::Fenced {
            options.push_str(&format!(" -c role={ROLE}"));
        }
        let mut config = self.config.clone();
        config.options(options.trim());
        config
    }

    pub fn pool(&self, acting: Acting) -> Result<Pool> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(self.config_for(acting), self.tls.clone(), recycling);
        Pool::builder(manager)
            .max_size(CONNECTIONS_MAX)
            .wait_timeout(Some(WAIT_MAX))
            .create_timeout(Some(CONNECT_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Backend { place: self.place.to_string(), what: error.to_string() })
    }

    /// Opens a separate connection. Asynchronous messages of the server are passed to `hear`, and
    /// `None` at the end.
    pub async fn connect(
        &self,
        acting: Acting,
        mut hear: impl FnMut(Option<AsyncMessage>) + Send + 'static,
    ) -> Result<Client> {
        let config = self.config_for(acting);
        let connecting = config.connect(self.tls.clone());
        let (client, mut connection) = connecting.await.map_err(|error| translate(&error, &self.place))?;
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                hear(Some(message));
            }
            hear(None);
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
pub(super) struct Home(Option<tokio::runtime::Runtime>);

impl Home {
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
    pub fn inside<F: Future>(&self, work: F) -> Inside<F> {
        Inside { handle: self.handle().clone(), work: Box::pin(work) }
    }

    /// Blocks on a future, even inside another runtime.
    pub fn block_on<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.handle().block_on(work));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Home {
    /// Does not wait, because a store may be dropped by a task of another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) struct Inside<F> {
    handle: Handle,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Inside<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let handle = self.handle.clone();
        let _entered = handle.enter();
        self.work.as_mut().poll(cx)
    }
}
