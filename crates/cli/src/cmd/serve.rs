//! `sapwood serve`: serves the HTTP API, its event streams and the console until Ctrl-C or SIGTERM.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use sapwood::core::TimestampMs;
use sapwood::core::port::clock::Clock;
use sapwood::engine::compact::{PRUNE_KEEP_LAST, Pruning, Writing};
use sapwood::engine::memory::IdleWindow;
use sapwood::engine::personal_data::RetentionTask;
use sapwood::engine::turn::{ApprovalTask, TakeoverTask};
use sapwood::engine::{FileModels, SessionDefaults};
use sapwood::{Engine, SystemClock};
use sapwood_server::auth::Authenticator;
use sapwood_server::oidc::{JwksFile, JwksUrl, KeySource, KeyTimes, Oidc, OidcConfig, Tenancy};
use sapwood_server::{Listening, Rate, Settings, State};
use serde_json::json;

use crate::agents;
use crate::answer_links;
use crate::app::App;
use crate::config::{OidcSettings, PruneSettings, ServerSettings};
use crate::failure::{Failure, Result};
use crate::log::Log;
use crate::render::note;
use crate::triggers;

/// Serve the HTTP API and the console
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood serve
  sapwood serve --addr 127.0.0.1:8080 --grace 30")]
pub struct ServeArgs {
    /// Address to listen on; an address other than loopback requires API keys or tokens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7420")]
    addr: SocketAddr,
    /// Seconds that running turns have to finish after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,
    /// Seconds after SIGTERM in which the server still accepts requests while /readyz answers 503, so that a load
    /// balancer can remove it; a second signal ends the wait
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3600))]
    drain: u64,
}

pub async fn run(app: &mut App, args: ServeArgs) -> Result<()> {
    app.log = Some(Log::to_stderr(app.format()));
    app.open_backends()?;
    let agents = agents_of(app)?;
    app.engine = restrict_engine(app, &agents)?;
    check_models(app)?;
    let files_max = raise_file_limit();
    let config = app.paths.config.server.clone().unwrap_or_default();
    let oidc = config.oidc.clone().map(oidc_of).transpose()?;
    let has_tokens = oidc.is_some();
    let local = args.addr.ip().is_loopback().then(|| app.scope.clone());
    let authenticator = Authenticator::new(app.engine.store().clone(), local, oidc);
    let links = answer_links::open(&app.paths, &format!("http://{}", args.addr))?;
    app.engine = app.engine.clone().configured(|config| config.links = Some(links));
    let settings = fit_files(settings_of(&config, args.grace)?, files_max);
    let state = State::new(app.engine.clone(), authenticator, settings, agents);
    let triggers = triggers::read(app)?;
    state.serve_triggers(triggers.iter().map(triggers::ConfiguredTrigger::to_served).collect());
    let stopped = |error: sapwood_server::ListenError| Failure::new(error.code(), error.to_string());
    // Refuse to listen on a public address without authentication, before binding it.
    if !args.addr.ip().is_loopback() && !has_tokens && !app.engine.store().has_keys().await? {
        return Err(stopped(sapwood_server::ListenError::Open { addr: args.addr }));
    }
    let listening = Listening::bind(args.addr, state.clone()).await.map_err(stopped)?;
    // Handle signals before clients learn the address.
    let signals = StopSignals::install()?;
    announce(app, &state, listening.addr).await?;
    // Resume the turns of processes that died.
    let _keeper = TakeoverTask::start(&app.engine)?;
    // Escalate and expire the questions that were not answered in time.
    let _deadlines = ApprovalTask::start(&app.engine);
    // Announce and erase the inactive sessions of tenants with a retention.
    let _retention = RetentionTask::start(&app.engine);
    let mut tasks = triggers::start(&app.engine, triggers);
    tasks.push(tokio::spawn(learn_from_idle(app.engine.clone(), idle_ms(app))));
    tasks.extend(
        app.paths.config.prune.clone().map(|prune| tokio::spawn(prune_idle(app.engine.clone(), prune))),
    );
    listening.run(drained(signals, state, Duration::from_secs(args.drain))).await;
    // Unfinished work is recorded in the logs, and the next server resumes it.
    tasks.into_iter().for_each(|task| task.abort());
    Ok(())
}

/// Restricts the engine for HTTP clients: sessions get no local directory by default, and clients can use a file-backed
/// model only if the operator's configuration or an agent names it.
fn restrict_engine(app: &App, agents: &[sapwood::Agent]) -> Result<Engine> {
    let triggers = triggers::read(app)?;
    let of_triggers = triggers.iter().map(|configured| &configured.installed.agent);
    let named = agents.iter().chain(of_triggers).flat_map(sapwood::Agent::models).map(str::to_owned);
    let memory = app.paths.config.memory.as_ref().and_then(|memory| memory.model.clone());
    let server = app.paths.config.server.as_ref();
    let of_clients = server.and_then(|server| server.openai_model.clone());
    let models = named.chain([app.default_model()]).chain(memory).chain(of_clients).collect();
    let agent = app.paths.agents().choose(None, &app.paths.config).ok();
    let defaults = SessionDefaults { agent, cwd: None };
    Ok(app.engine.clone().configured(|config| {
        config.file_models = FileModels::Named(models);
        config.session_defaults = defaults;
    }))
}

/// Refuses to start if a model in the configuration is unknown, because every turn would fail. A missing key is only noted:
/// it may be set for another server, or later.
fn check_models(app: &App) -> Result<()> {
    let config = &app.paths.config;
    let of_server = config.server.as_ref().and_then(|server| server.openai_model.as_ref());
    for model in config.model.iter().chain(of_server) {
        match app.engine.configuration().callable_model(model) {
            Err(error) if error.code() == "model.unknown" => {
                return Err(Failure::new("config.invalid", format!("model {model:?}: {error}")).with_hint(
                    "correct the name in sapwood.toml; run `sapwood model ls` to list the models",
                ));
            }
            Err(error) => note(app.format(), &format!("model {model:?} cannot be called yet: {error}")),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Raises the soft limit on open files to the hard limit, because every connection needs a file descriptor. Returns the
/// new limit, or `None` if there is no limit or it is unknown.
fn raise_file_limit() -> Option<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        // Best effort: keep the old limit on failure.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        getrlimit(Resource::Nofile).current
    }
    #[cfg(not(unix))]
    None
}

/// Limits connections to the available file descriptors, because a server without free descriptors cannot answer health
/// checks.
fn fit_files(mut settings: Settings, files_max: Option<u64>) -> Settings {
    let files_max = files_max.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let connections_max = settings.connections_max_for(files_max);
    if connections_max < settings.connections_max {
        tracing::warn!(files_max, connections_max, "connection limit lowered: too few file descriptors");
        settings.connections_max = connections_max;
    }
    settings
}

/// Default idle time after which memories are extracted from a session.
const IDLE_MINUTES_DEFAULT: u32 = 30;
/// Interval between checks for idle sessions.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Period covered by the first check, for sessions that became idle while no server was running.
const IDLE_LOOKBACK_MS: i64 = 7 * 86_400_000;

fn idle_ms(app: &App) -> i64 {
    let settings = app.paths.config.memory.clone().unwrap_or_default();
    match settings.learn {
        Some(false) => 0,
        _ => i64::from(settings.idle_minutes.unwrap_or(IDLE_MINUTES_DEFAULT)) * 60_000,
    }
}

/// Extracts memories from idle sessions while the server runs. Each check continues where the previous check ended.
/// Several servers may process the same session: memory ids are deterministic, so no duplicates are stored.
async fn learn_from_idle(engine: Engine, idle_ms: i64) {
    if idle_ms == 0 {
        return;
    }
    let mut after = SystemClock.now().0 - idle_ms - IDLE_LOOKBACK_MS;
    loop {
        let before = SystemClock.now().0 - idle_ms;
        let window = IdleWindow { after: TimestampMs(after), before: TimestampMs(before) };
        for tenant in engine.store().list_tenants().await.unwrap_or_default() {
            if let Err(error) = engine.memories().learn_from_idle(&tenant, window).await {
                tracing::warn!(%tenant, %error, "failed to extract memories from idle sessions");
            }
        }
        after = before - 1;
        tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
    }
}

/// Prunes inactive sessions while the server runs. The first check covers all sessions, and each later check those that
/// may have become inactive since the previous one. Several servers may check the same session: a prune that finds nothing
/// to remove writes nothing.
async fn prune_idle(engine: Engine, settings: PruneSettings) {
    let pruning = Pruning {
        inactive_for_ms: settings.inactive_for,
        keep_last: settings.keep_last.map_or(PRUNE_KEEP_LAST, |count| count as usize),
        writing: Writing::Write,
    };
    let mut since = TimestampMs(i64::MIN);
    loop {
        let checked_until = TimestampMs(SystemClock.now().0 - settings.inactive_for);
        for tenant in engine.store().list_tenants().await.unwrap_or_default() {
            match engine.compaction().prune_idle(&tenant, since, pruning).await {
                Ok(0) => {}
                Ok(pruned) => tracing::info!(%tenant, pruned, "pruned inactive sessions"),
                Err(error) => tracing::warn!(%tenant, %error, "failed to prune inactive sessions"),
            }
        }
        since = TimestampMs(checked_until.0 - 1);
        tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
    }
}

async fn announce(app: &mut App, state: &State, addr: SocketAddr) -> Result<()> {
    let url = format!("http://{addr}");
    if app.out.is_json() {
        app.out.json(&json!({ "url": url, "addr": addr.to_string() }))?;
    } else {
        writeln!(app.out, "listening on {url}")?;
    }
    app.out.flush()?;
    if !state.auth.is_locked().await.unwrap_or(true) {
        let text = "all local users have access; run `sapwood key new --user NAME` to require a key";
        note(app.format(), text);
    }
    Ok(())
}

/// Maximum configurable number of connections. An unused connection slot also needs some memory.
const CONNECTIONS_MAX: usize = 1_000_000;

fn settings_of(config: &ServerSettings, grace_s: u64) -> Result<Settings> {
    let defaults = Settings::default();
    let rate = match (config.rate_per_second, defaults.rate) {
        (Some(0), _) => None,
        (Some(per_second), _) => Some(Rate { per_second, burst: per_second.saturating_mul(4) }),
        (None, rate) => rate,
    };
    let connections_max = config.connections_max.unwrap_or(defaults.connections_max);
    let operate_connections_reserved =
        config.operate_connections_reserved.unwrap_or(defaults.operate_connections_reserved);
    if !(1..=CONNECTIONS_MAX).contains(&connections_max) || operate_connections_reserved > CONNECTIONS_MAX {
        let why = format!(
            "server: connections_max must be 1 to {CONNECTIONS_MAX}, and operate_connections_reserved at most that many"
        );
        return Err(Failure::new("config.invalid", why));
    }
    let unless_zero = |max: Option<usize>| max.map(|max| if max == 0 { usize::MAX } else { max });
    Ok(Settings {
        connections_max,
        connections_per_principal_max: unless_zero(config.connections_per_principal_max),
        streams_per_principal_max: unless_zero(config.streams_per_principal_max),
        connections_per_address_max: unless_zero(config.connections_per_address_max),
        connections_per_tenant_max: unless_zero(config.connections_per_tenant_max),
        streams_per_tenant_max: unless_zero(config.streams_per_tenant_max),
        projections_max: config.projections_max.unwrap_or(defaults.projections_max),
        projections_per_principal_max: config
            .projections_per_principal_max
            .unwrap_or(defaults.projections_per_principal_max),
        operate_connections_reserved,
        openai_model: config.openai_model.clone(),
        body_bytes_in_flight_max: config
            .body_bytes_in_flight_max
            .unwrap_or(defaults.body_bytes_in_flight_max),
        body_bytes_max: config.body_bytes_max.unwrap_or(defaults.body_bytes_max),
        upload_bytes_max: config.upload_bytes_max.unwrap_or(defaults.upload_bytes_max),
        rate,
        grace: Duration::from_secs(grace_s),
        ..defaults
    })
}

/// Returns the agents that clients can use. Skips agents with invalid files and prints a note for each.
fn agents_of(app: &App) -> Result<Vec<sapwood::Agent>> {
    let mut offered = vec![app.paths.agents().choose(Some("default"), &app.paths.config)?];
    let files = app.paths.agents().files()?;
    for path in files.iter().filter(|path| agents::name_of(path) != "default") {
        match agents::read(path) {
            Ok(agent) => offered.push(agent),
            Err(faults) => {
                let first = faults.first().map(ToString::to_string).unwrap_or_default();
                note(app.format(), &format!("skipped an invalid agent: {first}"));
            }
        }
    }
    Ok(offered)
}

fn oidc_of(settings: OidcSettings) -> Result<Oidc> {
    let tenant = match (settings.tenant, settings.tenant_claim) {
        (Some(tenant), None) => Tenancy::Fixed(tenant.parse().map_err(sapwood::Error::from)?),
        (None, Some(claim)) => Tenancy::Claim(claim),
        _ => return Err(misconfigured("set exactly one of tenant and tenant_claim")),
    };
    let source: Box<dyn KeySource> = match (settings.jwks_file, settings.jwks_url) {
        (Some(path), None) => Box::new(JwksFile(path)),
        (None, Some(url)) => Box::new(JwksUrl::new(url).map_err(|error| misconfigured(&error.to_string()))?),
        _ => return Err(misconfigured("set exactly one of jwks_file and jwks_url")),
    };
    let config = OidcConfig {
        issuer: settings.issuer,
        audience: settings.audience,
        user_claim: settings.user_claim.unwrap_or_else(|| "sub".to_owned()),
        tenant,
        times: KeyTimes::default(),
    };
    Ok(Oidc::new(config, source))
}

fn misconfigured(why: &str) -> Failure {
    Failure::new("config.invalid", format!("server.oidc: {why}"))
}

/// Waits for Ctrl-C, or for SIGTERM from a process supervisor.
/// Waits for a signal, then lets a load balancer notice that the server is stopping.
async fn drained(mut signals: StopSignals, state: State, time: Duration) {
    signals.recv().await;
    if !time.is_zero() {
        state.drain();
        let _ = tokio::time::timeout(time, signals.recv()).await;
    }
}

/// The signals that stop the server. They are handled from the moment this exists.
#[cfg(unix)]
struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl StopSignals {
    fn install() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct StopSignals;

#[cfg(not(unix))]
impl StopSignals {
    fn install() -> Result<Self> {
        Ok(Self)
    }

    async fn recv(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
