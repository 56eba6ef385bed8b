//! An independent mock of the four providers from the npm registry, pinned to the version and hash in `tests/mock`.
//! It checks that Sapwood's requests and decoders agree with another implementation of the protocols.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use sapwood_core::entry::Stop;
use sapwood_core::port::model::{ReplyEvent, Thinking};

use super::*;

const PROVIDERS: [&str; 4] = ["anthropic", "openai", "gemini", "ollama"];
/// Maximum number of attempts to reach the mock after its start.
const CONNECT_ATTEMPTS_MAX: usize = 2_400;

/// The package, installed once in the build directory, so that the source tree stays clean.
static PACKAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mock");
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("model-mock");
    std::fs::create_dir_all(&to).unwrap();
    let is_same = |name: &str| std::fs::read(from.join(name)).ok() == std::fs::read(to.join(name)).ok();
    let is_installed = to.join("node_modules/@copilotkit/aimock/dist/cli.js").is_file();
    if !is_installed || !is_same("package-lock.json") {
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(from.join(name), to.join(name)).unwrap();
        }
        let install = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
        let installed = Command::new("npm").args(install).current_dir(&to).output();
        let installed = installed.expect("these tests need node and npm: `cargo xtask test` installs them");
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    }
    to
});

struct Mock {
    child: std::process::Child,
    url: String,
}

impl Drop for Mock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Mock {
    async fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mock/fixtures.json");
        let child = Command::new("node")
            .arg(PACKAGE.join("node_modules/@copilotkit/aimock/dist/cli.js"))
            .args(["--port", &address.port().to_string(), "--log-level", "silent", "--strict", "--fixtures"])
            .arg(fixtures)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("failed to run node");
        let mock = Self { child, url: format!("http://{address}") };
        for _ in 0..CONNECT_ATTEMPTS_MAX {
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                return mock;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the mock did not start");
    }

    async fn call(&self, provider: &str, request: &Request) -> CallOutcome {
        let base_url = if provider == "openai" { format!("{}/v1", self.url) } else { self.url.clone() };
        super::call(&models_at(provider, &base_url, 10_000), request).await
    }
}

fn request_with(provider: &str, text: &str) -> Request {
    let name = match provider {
        "anthropic" => anthropic::NAME,
        "openai" => openai::NAME,
        "gemini" => gemini::NAME,
        _ => ollama::NAME,
    };
    let mut request = request(name);
    request.tools = vec![list_tool()];
    request.messages = vec![user(text)];
    request
}

#[tokio::test]
async fn every_adapter_works_with_an_independent_mock() {
    let mock = Mock::start().await;
    for provider in PROVIDERS {
        let outcome = mock.call(provider, &request_with(provider, "Hello")).await;
        assert_eq!(outcome.code(), "ok", "{provider}: {:?}", outcome.error);
        assert_eq!(text_of(&outcome.reply()), "Hello from an ümlaut 🌳, in many small pieces.", "{provider}");
        let texts = outcome.events.iter().filter(|event| matches!(event, ReplyEvent::Text(_))).count();
        assert!(texts > 5, "{provider} does not stream");
        assert_eq!(outcome.reply().stop, Some(Stop::Stop), "{provider}");
        check_tool_loop(&mock, provider).await;
        check_failures(&mock, provider).await;
    }
}

/// Two parallel calls, then their results. The mock sends the second answer only if it recognizes the results.
async fn check_tool_loop(mock: &Mock, provider: &str) {
    let mut request = request_with(provider, "list both");
    let outcome = mock.call(provider, &request).await;
    assert_eq!(outcome.reply().stop, Some(Stop::ToolUse), "{provider}: {:?}", outcome.error);
    let calls = calls_of(&outcome.reply());
    let inputs: Vec<&str> = calls.iter().map(|(_, _, input)| input.as_str()).collect();
    assert_eq!(inputs, [r#"{"path":"src"}"#, r#"{"path":"tests"}"#], "{provider}");
    let parts = calls.iter().map(|(id, name, input)| call_part(id, name, input)).collect();
    request.messages.push(message(Role::Assistant, parts));
    for (id, name, _) in &calls {
        request.messages.push(result(id, name, vec![text_part("a.rs")], false));
    }
    let outcome = mock.call(provider, &request).await;
    assert_eq!(text_of(&outcome.reply()), "There are two.", "{provider}: {:?}", outcome.error);
}

async fn check_failures(mock: &Mock, provider: &str) {
    let outcome = mock.call(provider, &request_with(provider, "too fast")).await;
    assert_eq!(outcome.code(), "model.rate_limited", "{provider}: {:?}", outcome.error);
    let outcome = mock.call(provider, &request_with(provider, "broken")).await;
    assert_eq!(outcome.code(), "model.cut", "{provider}: {:?}", outcome.error);
    assert!(text_of(&outcome.reply()).starts_with("This"), "{provider}");
    let outcome = mock.call(provider, &request_with(provider, "nothing in the fixtures")).await;
    assert!(outcome.error.is_some(), "{provider}");
}

#[tokio::test]
async fn reasoning_of_the_mock_is_decoded_and_its_signature_is_kept() {
    let mock = Mock::start().await;
    // The mock sends Ollama's reasoning in a field that Ollama does not have.
    for provider in PROVIDERS.into_iter().filter(|provider| *provider != "ollama") {
        let mut request = request_with(provider, "think");
        request.thinking = Thinking::Low;
        let outcome = mock.call(provider, &request).await;
        let reasoning: String = outcome
            .events
            .iter()
            .filter_map(|event| match event {
                ReplyEvent::Reasoning(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(reasoning, "Let me see.", "{provider}");
        assert_eq!(text_of(&outcome.reply()), "It is so.", "{provider}");
        if provider == "anthropic" {
            let signatures: Vec<_> = outcome.reply().signatures().into_values().collect();
            assert_eq!(signatures[0].0.as_ref(), "anthropic:thinking:c2lnbmVk");
        }
    }
}
