//! Command and HTTP hooks: their input, their answers, and their termination after a timeout.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use sapwood_core::TimestampMs;
use sapwood_core::port::hook::{ANSWER_BYTES_MAX, Hook, HookError, HookEvent, HookName, Verdict};
use sapwood_core::scope::Principal;
use sapwood_effects::hook::signature::verify;
use sapwood_effects::hook::{CommandHook, HttpHook};
use sapwood_effects::sandbox::Launcher;
use sapwood_effects::sandbox::limits::ResourceLimits;
use sapwood_effects::secret::Secret;
use serde_json::{Value, json};

use crate::harness::{Reply, TestNetwork, http_response, redirect};

fn event() -> HookEvent {
    HookEvent {
        hook: HookName::BeforeTool,
        session: "s".parse().unwrap(),
        tenant: "local".parse().unwrap(),
        by: Principal::System,
        at: TimestampMs(1_700_000_000_000),
        turn: None,
        depth: 1,
        rehearsal: false,
        data: json!({"tool": "look", "input": {"path": "ä"}}),
    }
}

fn shell(script: &str, dir: &Path, env: &[(&str, &str)]) -> CommandHook {
    let words = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let env: BTreeMap<String, Secret> =
        env.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value))).collect();
    CommandHook::new(words, dir, env).unwrap()
}

async fn run_hook(script: &str) -> Result<Verdict, HookError> {
    let dir = tempfile::tempdir().unwrap();
    shell(script, dir.path(), &[]).call(&event()).await.map(|answer| answer.verdict)
}

#[tokio::test]
async fn a_program_receives_the_event_and_its_answer_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"cat > event.json; echo '{"verdict": "refuse", "reason": "not today"}'"#;
    let response = shell(script, dir.path(), &[]).call(&event()).await.unwrap();
    assert_eq!(response.verdict, Verdict::Refuse { reason: "not today".into() });
    let received: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("event.json")).unwrap()).unwrap();
    assert_eq!((&received["hook"], &received["data"]["input"]["path"]), (&json!("before_tool"), &json!("ä")));
    assert_eq!(received["by"], "system");
}

#[tokio::test]
async fn a_program_without_output_changes_nothing() {
    assert_eq!(run_hook("true").await.unwrap(), Verdict::GoOn);
    // The program does not have to read its input.
    assert_eq!(run_hook("exec 0<&-; sleep 0.1").await.unwrap(), Verdict::GoOn);
}

#[tokio::test]
async fn an_invalid_answer_is_a_failure_with_a_reason() {
    let failed = |result: Result<Verdict, HookError>| result.unwrap_err().to_string();
    assert!(failed(run_hook("echo no json").await).contains("is not valid"));
    assert!(failed(run_hook("echo sorry >&2; exit 3").await).contains("sorry"));
    assert!(failed(run_hook(&format!("head -c {} /dev/zero", ANSWER_BYTES_MAX + 1)).await).contains("bytes"));
    let none = CommandHook::new(vec!["no-such-program-here".into()], "/", BTreeMap::new()).unwrap();
    assert!(none.call(&event()).await.unwrap_err().to_string().contains("no-such-program-here"));
    assert!(CommandHook::new(Vec::new(), "/", BTreeMap::new()).is_err());
}

#[tokio::test]
async fn a_program_gets_a_clean_environment_and_its_nesting_depth() {
    let dir = tempfile::tempdir().unwrap();
    let hook = shell("env > env.txt", dir.path(), &[("GREETING", "hello-there")]);
    hook.call(&event()).await.unwrap();
    let env = std::fs::read_to_string(dir.path().join("env.txt")).unwrap();
    assert!(env.contains("GREETING=hello-there") && env.contains("SAPWOOD_HOOK_DEPTH=2"), "{env}");
    assert!(!env.contains("CARGO"), "the caller's variables must not be passed on: {env}");
}

#[tokio::test]
async fn the_error_output_of_a_failing_program_is_redacted() {
    let dir = tempfile::tempdir().unwrap();
    let hook = shell("echo \"my key is $TOKEN\" >&2; exit 1", dir.path(), &[("TOKEN", "t0ken-canary-1234")]);
    let error = hook.call(&event()).await.unwrap_err().to_string();
    assert!(error.contains("my key is [secret]") && !error.contains("canary"), "{error}");
}

#[tokio::test]
async fn a_program_that_times_out_is_killed_with_everything_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let hook = shell("(sleep 1; touch late) & sleep 600", dir.path(), &[]);
    let called = tokio::time::timeout(Duration::from_millis(200), hook.call(&event())).await;
    assert!(called.is_err());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!dir.path().join("late").exists());
}

#[tokio::test]
async fn a_leftover_child_process_does_not_delay_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let hook = shell("sleep 600 & echo '{}'", dir.path(), &[]);
    let called = tokio::time::timeout(Duration::from_secs(20), hook.call(&event())).await;
    assert!(called.expect("the call waits for the child").is_ok());
}

fn secret() -> Secret {
    Secret::new("correct horse battery")
}

#[tokio::test]
async fn a_server_gets_a_signed_request_and_its_answer_is_used() {
    let body = br#"{"verdict": "change", "data": {"input": {"path": "b"}}}"#;
    let network =
        TestNetwork::start(|_, _| http_response("200 OK", "Content-Type: application/json\r\n", body)).await;
    let url = network.url("good.test", "/hook");
    let hook = HttpHook::with_egress(&url, secret(), network.egress(&["good.test"])).unwrap();
    let response = hook.call(&event()).await.unwrap();
    assert_eq!(response.verdict, Verdict::Change { data: json!({"input": {"path": "b"}}) });
    let received = network.requests().remove(0);
    let (head, body) = received.split_once("\r\n\r\n").unwrap();
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.to_lowercase().strip_prefix(name).map(str::to_owned));
        line.unwrap_or_else(|| panic!("{name} is missing: {head}"))
    };
    let (time, signature) = (header("sapwood-timestamp: "), header("sapwood-signature: "));
    assert_eq!(verify(&secret(), &time, &signature, body.as_bytes(), event().at.0), Ok(()));
    assert_eq!(header("sapwood-hook: "), "before_tool");
    assert!(!received.contains("correct horse"));
}

#[tokio::test]
async fn a_server_at_another_address_is_never_reached() {
    let network = TestNetwork::start(|_, port| {
        redirect("307 Temporary Redirect", &format!("https://evil.test:{port}/"))
    })
    .await;
    let url = network.url("evil.test", "/");
    assert!(HttpHook::with_egress(&url, secret(), network.egress(&["good.test"])).is_err());
    assert!(HttpHook::new("http://good.test/", secret(), &["good.test".to_owned()]).is_err());
    let hook =
        HttpHook::with_egress(&network.url("good.test", "/"), secret(), network.egress(&["good.test"]));
    let error = hook.unwrap().call(&event()).await.unwrap_err().to_string();
    assert!(error.contains("evil.test"), "{error}");
    // The host name is allowed, but its address is private.
    let private =
        HttpHook::new(&network.url("localhost", "/"), secret(), &[format!("localhost:{}", network.port)]);
    let error = private.unwrap().call(&event()).await.unwrap_err().to_string();
    assert!(error.contains("loopback"), "{error}");
}

#[tokio::test]
async fn an_error_status_or_an_oversized_answer_is_a_failure() {
    let network = TestNetwork::start(|request, _| match request.contains("/much") {
        true => Reply::Endless("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned()),
        false => http_response("500 Oops", "", b"{}"),
    })
    .await;
    for (path, why) in [("/much", "bytes"), ("/", "500")] {
        let hook =
            HttpHook::with_egress(&network.url("good.test", path), secret(), network.egress(&["good.test"]));
        let error = hook.unwrap().call(&event()).await.unwrap_err().to_string();
        assert!(error.contains(why), "{path}: {error}");
    }
}

fn limited_shell(script: &str, dir: &Path, limits: ResourceLimits) -> CommandHook {
    let launcher = Launcher::Binary(env!("CARGO_BIN_EXE_sapwood-launcher").into());
    shell(script, dir, &[]).with_limits(launcher, limits, Vec::new())
}

#[tokio::test]
async fn a_hook_with_a_launcher_answers_and_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        r#"cat > event.json; setsid sleep 600 & echo $! > pid; echo '{"verdict": "refuse", "reason": "no"}'"#;
    let hook = limited_shell(script, dir.path(), ResourceLimits::default());
    let answer = hook.call(&event()).await.unwrap();
    assert_eq!(answer.verdict, Verdict::Refuse { reason: "no".into() });
    assert!(std::fs::read_to_string(dir.path().join("event.json")).unwrap().contains("before_tool"));
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    let command_line = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert!(command_line.is_empty(), "{}", String::from_utf8_lossy(&command_line));
}

#[tokio::test]
async fn a_dropped_call_ends_a_hook_that_detached_itself() {
    let dir = tempfile::tempdir().unwrap();
    let hook =
        limited_shell("setsid sleep 600 & echo $! > pid; sleep 600", dir.path(), ResourceLimits::default());
    let pid_file = dir.path().join("pid");
    let has_started = async {
        while std::fs::read_to_string(&pid_file).unwrap_or_default().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let event = event();
    tokio::select! {
        answer = hook.call(&event) => panic!("the hook ended: {answer:?}"),
        () = has_started => {}
    }
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    while std::fs::read(format!("/proc/{}/cmdline", pid.trim())).is_ok_and(|line| !line.is_empty()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_hook_that_reaches_a_limit_fails_with_the_limit_and_its_setting() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ResourceLimits { processes_max: 20, ..ResourceLimits::default() };
    let hook = limited_shell("for i in $(seq 60); do sleep 600 & done; wait", dir.path(), limits);
    let error = hook.call(&event()).await.unwrap_err().to_string();
    assert!(error.contains("20 processes") && error.contains("[sandbox.hook]"), "{error}");
}
