//! Real MCP servers: a test program as a child process, and the same server over HTTPS.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use sapwood_core::id::{SessionId, TenantId};
use sapwood_core::port::tool::{
    FsScope, McpServer, OutputPart, ProgramLimits, Replay, ServerSandbox, ToolError, ToolGrant, ToolOutput,
    Touch,
};
use sapwood_effects::egress::{AllowedHosts, Egress};
use sapwood_effects::sandbox::Launcher;
use sapwood_effects::sandbox::limits::{MIB, ResourceLimits};
use sapwood_effects::secret::Secrets;
use sapwood_effects::tool::Tool;
use sapwood_effects::tool::mcp::{McpLimits, McpProfile, McpPrograms, open_mcp_tools};
use serde_json::json;

use crate::harness::{FixedResolver, LIMITS, SERVER, listen, text_of};
use crate::stub::{PICTURE, Stub};

/// Limits for servers that answer, generous enough for a busy machine.
const NORMAL_LIMITS: McpLimits = McpLimits { start_ms_max: 60_000, call_ms_max: 60_000, restarts_max: 2 };
/// Limits for servers that do not answer.
const SHORT_LIMITS: McpLimits = McpLimits { call_ms_max: 1_000, ..NORMAL_LIMITS };
const CANARY: &str = "mcp-canary-8d1f";

/// The path of the stub program, which `cargo test` builds next to the tests.
fn stub_program() -> String {
    let deps: PathBuf = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    deps.parent().unwrap().join("examples/mcp_stub").display().to_string()
}

pub fn stdio(env: &[(&str, &str)]) -> McpServer {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    McpServer::Stdio { command: stub_program(), args: vec![], env, sandbox: None }
}

fn grant(servers: &[(&str, McpServer)]) -> ToolGrant {
    ToolGrant {
        tenant: "main".parse::<TenantId>().unwrap(),
        session: "00000000-0000-7000-8000-000000000001".parse::<SessionId>().unwrap(),
        cwd: None,
        fs_scope: FsScope::Sandboxed,
        tools: vec![],
        allowed_commands: vec![],
        allowed_hosts: vec![],
        mcp_servers: servers.iter().map(|(name, server)| ((*name).to_owned(), server.clone())).collect(),
        sandbox: ProgramLimits::default(),
    }
}

fn secrets() -> Arc<Secrets> {
    Arc::new(Secrets::from_variables([("SAPWOOD_SECRET_CANARY".to_owned(), CANARY.to_owned())]))
}

/// Programs in the sandbox, in the system's temporary directory.
fn programs_with(profile: McpProfile) -> Arc<McpPrograms> {
    let directory = std::env::temp_dir();
    let launcher = Launcher::Binary(env!("CARGO_BIN_EXE_sapwood-launcher").into());
    Arc::new(McpPrograms { launcher, profile, cgroups: Vec::new(), home: directory.clone(), directory })
}

fn programs() -> Arc<McpPrograms> {
    programs_with(McpProfile::default())
}

fn no_egress() -> Egress {
    Egress::new(AllowedHosts::default(), LIMITS).unwrap()
}

async fn open(servers: &[(&str, McpServer)], egress: &Egress) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
    open_mcp_tools(&grant(servers), egress, &secrets(), NORMAL_LIMITS, &programs()).await
}

async fn open_stub() -> Vec<Arc<dyn Tool>> {
    open(&[("stub", stdio(&[]))], &no_egress()).await.unwrap()
}

async fn open_with_short_timeout() -> Vec<Arc<dyn Tool>> {
    let grant = grant(&[("stub", stdio(&[]))]);
    open_mcp_tools(&grant, &no_egress(), &secrets(), SHORT_LIMITS, &programs()).await.unwrap()
}

async fn call(tools: &[Arc<dyn Tool>], name: &str, text: &str) -> ToolOutput {
    let full = format!("mcp__stub__{name}");
    tools.iter().find(|tool| tool.spec().name == full).unwrap().run(&json!({"text": text})).await
}

fn is_running(pid: &str) -> bool {
    // A zombie process also has a directory, but no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

async fn exits(pid: &str) -> bool {
    for _ in 0..1_200 {
        if !is_running(pid) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

#[tokio::test]
async fn a_programs_tools_are_listed_and_called() {
    let tools = open_stub().await;
    let specs: BTreeMap<String, _> = tools.iter().map(|tool| (tool.spec().name, tool.spec())).collect();
    assert_eq!(specs.len(), 15);
    assert_eq!((specs["mcp__stub__echo"].touch, specs["mcp__stub__die"].touch), (Touch::Reads, Touch::Acts));
    assert!(specs.values().all(|spec| spec.replay == Replay::Never));
    assert_eq!(call(&tools, "echo", "hello").await, ToolOutput::text("hello"));
    assert_eq!(call(&tools, "refuse", "").await, ToolOutput::error("not today"));
    let picture = OutputPart::Media { mime: "image/png".into(), name: None, bytes: PICTURE.into() };
    assert_eq!(call(&tools, "picture", "").await.parts, vec![picture]);
}

#[tokio::test]
async fn a_program_gets_a_clean_environment_and_its_secret_is_redacted() {
    let server = stdio(&[("PLAIN", "value"), ("TOKEN", "secret:CANARY")]);
    let tools = open(&[("stub", server)], &no_egress()).await.unwrap();
    let boast = tools.iter().map(|tool| tool.spec()).find(|spec| spec.name == "mcp__stub__boast").unwrap();
    assert_eq!(boast.description, "my key is [secret:CANARY]");
    let text = text_of(&call(&tools, "env", "").await);
    assert!(text.contains("PLAIN=value") && text.contains("TOKEN=[secret:CANARY]"), "{text}");
    assert!(text.contains("PATH=") && !text.contains("CARGO") && !text.contains(CANARY), "{text}");
    let names: Vec<&str> = text.lines().filter_map(|line| line.split('=').next()).collect();
    let known =
        ["PLAIN", "TOKEN", "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
}

/// A process id that a tool returns. Retries, because on a busy machine the answer may exceed the short timeout.
async fn pid_from(tools: &[Arc<dyn Tool>], name: &str) -> String {
    for _ in 0..20 {
        let text = text_of(&call(tools, name, "").await);
        if text.parse::<u32>().is_ok() {
            return text;
        }
    }
    panic!("{name} returns no process id");
}

#[tokio::test]
async fn dropping_the_tools_kills_the_program_and_its_children() {
    let tools = open_stub().await;
    let (server, started) = (pid_from(&tools, "pid").await, pid_from(&tools, "spawn").await);
    assert!(is_running(&server) && is_running(&started));
    drop(tools);
    assert!(exits(&server).await && exits(&started).await);
}

#[tokio::test]
async fn a_crash_of_the_program_is_explained_and_it_is_restarted_a_few_times() {
    let tools = open_stub().await;
    for _ in 0..=NORMAL_LIMITS.restarts_max {
        assert_eq!(call(&tools, "echo", "here").await, ToolOutput::text("here"));
        let output = call(&tools, "die", &format!("a cold, {CANARY}")).await;
        let text = text_of(&output);
        assert!(
            output.is_error
                && text.contains("dying of a cold, [secret:CANARY]")
                && text.contains("may have had effects"),
            "{text}"
        );
    }
    let output = call(&tools, "echo", "here").await;
    assert!(output.is_error && text_of(&output).contains("not restarted again"), "{output:?}");
}

#[tokio::test]
async fn a_slow_call_times_out_and_its_server_stays_alive() {
    let tools = open_with_short_timeout().await;
    let pid = pid_from(&tools, "pid").await;
    let began = Instant::now();
    let output = call(&tools, "hang", "").await;
    assert!(output.is_error && text_of(&output).contains("no result within 1000 ms"), "{output:?}");
    assert!(began.elapsed().as_secs() < 60);
    assert_eq!(pid_from(&tools, "pid").await, pid);
}

#[tokio::test]
async fn an_unresponsive_server_is_killed_and_replaced() {
    let tools = open_with_short_timeout().await;
    let pid = pid_from(&tools, "pid").await;
    assert!(call(&tools, "freeze", "").await.is_error);
    assert!(exits(&pid).await);
    assert_ne!(pid_from(&tools, "pid").await, pid);
}

#[tokio::test]
async fn a_server_that_cannot_be_opened_fails_the_toolbox_with_a_reason() {
    let program = |command: &str, args: &[&str]| McpServer::Stdio {
        command: command.into(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: BTreeMap::new(),
        sandbox: None,
    };
    let script = format!("echo broken {CANARY} >&2");
    for (server, expected) in [
        (program("/no/such/program", &[]), "failed to start"),
        (program("sh", &["-c", &script]), "broken [secret:CANARY]"),
        (program("cat", &[]), ""),
        (stdio(&[("TOKEN", "secret:ABSENT")]), "no secret ABSENT"),
        (
            McpServer::Http { url: "https://evil.test/mcp".into(), headers: BTreeMap::new() },
            "not in allowed_hosts",
        ),
        (McpServer::Http { url: "http://good.test/mcp".into(), headers: BTreeMap::new() }, "only https"),
    ] {
        let limits = McpLimits { start_ms_max: 3_000, ..NORMAL_LIMITS };
        let opened =
            open_mcp_tools(&grant(&[("bad", server.clone())]), &no_egress(), &secrets(), limits, &programs())
                .await;
        let error = opened.err().unwrap();
        assert_eq!(error.code(), "tool.server");
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains(CANARY), "{server:?}: {text}");
    }
}

/// Serve the stub over HTTPS. Returns the port and the certificate.
async fn serve_https(config: StreamableHttpServerConfig) -> (u16, String) {
    let (acceptor, listener, pem) = listen().await;
    let port = listener.local_addr().unwrap().port();
    let service = StreamableHttpService::new(|| Ok(Stub), Arc::new(LocalSessionManager::default()), config);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, service) = (acceptor.clone(), service.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
            });
        }
    });
    (port, pem)
}

#[tokio::test]
async fn a_server_over_https_is_reached_through_the_egress_rules() {
    for (sessions, json_answers) in [(true, false), (false, true)] {
        let mut config = StreamableHttpServerConfig::default();
        config.legacy_session_mode = sessions;
        config.json_response = json_answers;
        config.allowed_hosts = vec!["good.test".to_owned()];
        let (port, pem) = serve_https(config).await;
        let names = Arc::new(FixedResolver::default());
        names.set("good.test", &[&["127.0.0.1"]]);
        let hosts = AllowedHosts::parse(&[format!("good.test:{port}")]).unwrap();
        let egress = Egress::for_tests(hosts.clone(), LIMITS, names.clone(), SERVER, &pem).unwrap();
        let headers = BTreeMap::from([("X-Key".to_owned(), "secret:CANARY".to_owned())]);
        let server = McpServer::Http { url: format!("https://good.test:{port}/mcp"), headers };
        let tools = open(&[("stub", server.clone())], &egress).await.unwrap();
        assert_eq!(call(&tools, "echo", "over the wire").await, ToolOutput::text("over the wire"));
        assert_eq!(call(&tools, "refuse", "").await, ToolOutput::error("not today"));
        // An ordinary client rejects the same server, because its address is not public.
        let closed = Egress::with_resolver(hosts, LIMITS, names).unwrap();
        let error = open(&[("stub", server)], &closed).await.err().unwrap().to_string();
        assert!(error.contains("loopback"), "{error}");
    }
}

/// Open the stub with a profile of the operator and a declaration of the server.
async fn open_with_profile(
    profile: McpProfile,
    sandbox: Option<ServerSandbox>,
) -> Result<Vec<Arc<dyn Tool>>, ToolError> {
    let server = McpServer::Stdio { command: stub_program(), args: vec![], env: BTreeMap::new(), sandbox };
    let grant = grant(&[("stub", server)]);
    open_mcp_tools(&grant, &no_egress(), &secrets(), NORMAL_LIMITS, &programs_with(profile)).await
}

#[tokio::test]
async fn a_program_uses_the_network_unless_its_profile_denies_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tools = open_with_profile(McpProfile::default(), None).await.unwrap();
    assert_eq!(call(&tools, "connect", &address).await, ToolOutput::text("connected"));
    if !programs().launcher.confines() {
        return;
    }
    let offline = ServerSandbox { network: Some(false), ..ServerSandbox::default() };
    let tools = open_with_profile(McpProfile::default(), Some(offline)).await.unwrap();
    assert!(call(&tools, "connect", &address).await.is_error);
    // A server cannot declare more than the operator allows.
    let denied = McpProfile { network: sapwood_effects::sandbox::Network::Denied, ..McpProfile::default() };
    let online = ServerSandbox { network: Some(true), ..ServerSandbox::default() };
    let tools = open_with_profile(denied, Some(online)).await.unwrap();
    assert!(call(&tools, "connect", &address).await.is_error);
}

#[tokio::test]
async fn a_program_reads_only_the_paths_of_its_profile() {
    if !programs().launcher.confines() {
        return;
    }
    // Outside of the temporary directory, which the program may use here.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
    for name in ["a", "b"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::write(path(name).join("file"), "content").unwrap();
    }
    let read = |tools: Vec<Arc<dyn Tool>>, name: &'static str| {
        let file = path(name).join("file").display().to_string();
        async move { text_of(&call(&tools, "read", &file).await) }
    };
    let open = |profile: &McpProfile, declared: Option<&str>| {
        let read = declared.map(|name| vec![path(name).display().to_string()]);
        open_with_profile(profile.clone(), Some(ServerSandbox { read, ..ServerSandbox::default() }))
    };
    let none = McpProfile::default();
    assert_ne!(read(open(&none, None).await.unwrap(), "a").await, "content");
    let both = McpProfile { read: vec![path("a"), path("b")], ..McpProfile::default() };
    assert_eq!(read(open(&both, None).await.unwrap(), "b").await, "content");
    assert_eq!(read(open(&both, Some("a")).await.unwrap(), "a").await, "content");
    assert_ne!(read(open(&both, Some("a")).await.unwrap(), "b").await, "content");
    let refused = open(&none, Some("a")).await.err().unwrap().to_string();
    assert!(refused.contains("[sandbox.mcp]"), "{refused}");
}

#[tokio::test]
async fn a_program_that_exceeds_its_memory_is_stopped_with_a_reason() {
    let limits = ResourceLimits { memory_bytes_max: 100 * MIB, ..ResourceLimits::default() };
    let tools = open_with_profile(McpProfile { limits, ..McpProfile::default() }, None).await.unwrap();
    let text = text_of(&call(&tools, "allocate", "400").await);
    for part in ["100 MiB of memory", "memory_mb", "[sandbox.mcp]"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(call(&tools, "echo", "restarted").await, ToolOutput::text("restarted"));
}

#[tokio::test]
async fn a_detached_process_of_a_server_does_not_outlive_it() {
    let tools = open_stub().await;
    let detached = pid_from(&tools, "detach").await;
    assert!(is_running(&detached));
    drop(tools);
    assert!(exits(&detached).await);
}

#[tokio::test]
async fn a_deeply_nested_result_is_an_error_and_the_next_call_works() {
    let tools = open_with_short_timeout().await;
    assert!(!call(&tools, "deep", "20").await.is_error);
    assert!(call(&tools, "deep", "1000").await.is_error);
    // On a busy machine, an answer may exceed the short timeout.
    pid_from(&tools, "pid").await;
}
