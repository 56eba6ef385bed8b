//! A test server with users and keys. Every response is validated against the OpenAPI document.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};

use sapwood::core::approval::ApprovalWait;
use sapwood::core::port::clock::Clock;
use sapwood::core::port::keys::{ApiKey, Grant};
use sapwood::core::{BlobHash, TimestampMs};
use sapwood::effects::answer_link::SignedLinks;
use sapwood::effects::secret::Secret;
use sapwood::store::{OpenOptions, open};
use sapwood::{Agent, Engine, Principal, Scope, SystemClock, TenantId};
use sapwood_server::auth::{Authenticator, new_key};
use sapwood_server::{Listening, Settings, State, document};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::actor::test_backends;
use crate::wire::{TestResponse, exchange, request};

pub static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

pub struct TestServer {
    pub addr: SocketAddr,
    pub engine: Engine,
    pub state: State,
    keys: HashMap<String, String>,
    stop: Option<oneshot::Sender<()>>,
    /// The directory of the store `s.db`.
    pub dir: tempfile::TempDir,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct TestRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// The name of a key in the harness, a whole credential, or `None`.
    pub key: Option<&'a str>,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

impl TestServer {
    /// Starts a server with keys for users of the tenant `local`, for ana of another tenant, and an expired key.
    pub async fn open() -> Self {
        Self::open_with(Settings { rate: None, ..Settings::default() }).await
    }

    pub async fn open_with(settings: Settings) -> Self {
        let mut server = Self::bare(settings).await;
        for (name, tenant, user) in [
            ("ana", "local", "ana"),
            ("bob", "local", "bob"),
            ("rex", "local", "rex"),
            ("cole", "local", "cole"),
            ("foreign", "elsewhere", "ana"),
        ] {
            server.add_key(name, tenant, user, &[Grant::Read, Grant::Write], None).await;
        }
        server.add_key("ana-reads", "local", "ana", &[Grant::Read], None).await;
        server.add_key("operator", "local", "olga", &[Grant::Operate], None).await;
        server.add_key("expired", "local", "ana", &[Grant::Read, Grant::Write], Some(TimestampMs(1))).await;
        server
    }

    /// Starts a server without any key: local callers may do everything.
    pub async fn bare(settings: Settings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("s.db").display());
        let store = open(&url, OpenOptions::default()).unwrap();
        let engine =
            Engine::new(store, std::sync::Arc::new(SystemClock)).with_backends(test_backends(dir.path()));
        let links = SignedLinks::new(&Secret::new("k".repeat(32)), "https://example.org").unwrap();
        let engine = engine.configured(|config| config.links = Some(Arc::new(links)));
        let local = Scope::operator(TenantId::local(), Principal::User("local".parse().unwrap()));
        let auth = Authenticator::new(engine.store().clone(), Some(local), None);
        let asker = Agent { tools: vec!["ask_user".to_owned()], ..Agent::default() };
        let tools = ["write_file", "read_file", "put_artifact"].map(str::to_owned).to_vec();
        let writer = Agent { id: "writer".to_owned(), tools, ..Agent::default() };
        let wait = ApprovalWait { expire_after_s: Some(1), ..ApprovalWait::default() };
        let hasty = Agent { id: "hasty".to_owned(), approval_wait: Some(wait), ..asker.clone() };
        let state = State::new(engine.clone(), auth, settings, vec![asker, writer, hasty]);
        let listening = Listening::bind("127.0.0.1:0".parse().unwrap(), state.clone()).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let addr = listening.addr;
        tokio::spawn(listening.run(async move {
            let _ = stopped.await;
        }));
        Self { addr, engine, state, keys: HashMap::new(), stop: Some(stop), dir }
    }

    pub async fn add_key(
        &mut self,
        name: &str,
        tenant: &str,
        user: &str,
        grants: &[Grant],
        expires_at: Option<TimestampMs>,
    ) -> String {
        let (id, secret) = new_key().unwrap();
        let tenant: TenantId = tenant.parse().unwrap();
        let key = ApiKey {
            id: id.clone(),
            tenant: tenant.clone(),
            user: user.parse().unwrap(),
            hash: BlobHash::of(secret.as_bytes()),
            label: None,
            grants: grants.to_vec(),
            created_at: SystemClock.now(),
            expires_at,
            revoked_at: None,
        };
        let scope = Scope::operator(tenant, Principal::System);
        self.engine.store().put_key(&scope, key).await.unwrap();
        self.keys.insert(name.to_owned(), secret);
        id
    }

    pub fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub fn key(&self, name: &str) -> String {
        self.keys.get(name).cloned().unwrap_or_else(|| name.to_owned())
    }

    pub fn bytes_of(&self, req: TestRequest<'_>) -> Vec<u8> {
        let bearer = req.key.map(|key| format!("Bearer {}", self.key(key)));
        let mut headers = req.headers.to_vec();
        headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        request(req.method, req.path, &headers, req.body)
    }

    pub async fn request(&self, req: TestRequest<'_>) -> TestResponse {
        let answer = exchange(self.addr, &self.bytes_of(req)).await;
        check_documented(req.method, req.path, &answer);
        answer
    }

    pub async fn get(&self, key: &str, path: &str) -> TestResponse {
        self.request(TestRequest { method: "GET", path, key: Some(key), headers: &[], body: b"" }).await
    }

    pub async fn send(&self, method: &str, key: &str, path: &str, body: &Value) -> TestResponse {
        let headers = [("content-type", "application/json")];
        let body = body.to_string();
        self.request(TestRequest { method, path, key: Some(key), headers: &headers, body: body.as_bytes() })
            .await
    }

    pub async fn post(&self, key: &str, path: &str, body: &Value) -> TestResponse {
        self.send("POST", key, path, body).await
    }

    /// Creates a session of ana with three messages. rex is a reader and cole a collaborator.
    pub async fn shared_session(&self, id: &str) {
        let created = self.post("ana", "/v1/sessions", &json!({ "id": id, "agent": "default" })).await;
        assert_eq!(created.status, 201, "{:?}", created.json());
        for text in ["one", "two", "three"] {
            self.add_message("ana", id, text).await;
        }
        for (member, role) in [("rex", "reader"), ("cole", "collaborator")] {
            let share = json!({ "member": member, "role": role });
            let shared = self.post("ana", &format!("/v1/sessions/{id}/members"), &share).await;
            assert_eq!(shared.status, 200, "{:?}", shared.json());
        }
    }

    pub async fn add_message(&self, key: &str, id: &str, text: &str) -> TestResponse {
        let message = json!({ "role": "user", "content": text });
        let added = self.post(key, &format!("/v1/sessions/{id}/entries"), &message).await;
        assert_eq!(added.status, 201, "{:?}", added.json());
        added
    }
}

/// Checks the status, media type and schema of a response against the document.
fn check_documented(method: &str, path: &str, answer: &TestResponse) {
    let path = path.split('?').next().unwrap();
    // The console's files are not part of the API.
    if path == "/" || path.starts_with("/assets/") {
        return;
    }
    let Some((template, item)) = find_path(path) else {
        assert_eq!(
            answer.code(),
            if path.starts_with("/v1") && answer.status == 401 { "auth.required" } else { "route.not_found" }
        );
        return;
    };
    let operation = &item[method.to_ascii_lowercase()];
    if operation.is_null() {
        return;
    }
    let responses = &operation["responses"];
    let exact = &responses[answer.status.to_string()];
    let response = if exact.is_null() { &responses["default"] } else { exact };
    if exact.is_null() {
        assert!(answer.status >= 400, "{method} {template}: {} is not documented", answer.status);
    }
    let kind = answer.header("content-type").unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let Some(content) = response["content"].as_object().filter(|_| answer.status != 304) else { return };
    let Some(schema) = content.get(essence).map(|content| content["schema"].clone()) else {
        let is_bytes = content.contains_key("*/*");
        assert!(is_bytes, "{method} {template}: {essence:?} is not documented for {}", answer.status);
        return;
    };
    if !essence.ends_with("json") {
        return;
    }
    let faults = faults_of(&schema, &answer.json());
    assert!(faults.is_empty(), "{method} {template}: {faults:?} in {}", answer.json());
}

/// Checks a value against a schema of the document.
pub fn check_schema(name: &str, value: &Value) {
    let faults = faults_of(&json!({ "$ref": format!("#/components/schemas/{name}") }), value);
    assert!(faults.is_empty(), "{name}: {faults:?} in {value}");
}

fn faults_of(schema: &Value, value: &Value) -> Vec<String> {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<jsonschema::Validator>>>> =
        LazyLock::new(Mutex::default);
    let compile = || {
        let whole = json!({ "components": DOCUMENT["components"], "allOf": [schema] });
        Arc::new(jsonschema::validator_for(&whole).unwrap())
    };
    let key = schema.to_string();
    let validator = VALIDATORS.lock().unwrap().entry(key).or_insert_with(compile).clone();
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn find_path(path: &str) -> Option<(&'static String, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let fits = |template: &str| {
        let (requested, expected): (Vec<&str>, Vec<&str>) =
            (path.split('/').collect(), template.split('/').collect());
        requested.len() == expected.len()
            && requested
                .iter()
                .zip(expected)
                .all(|(requested, expected)| expected.starts_with('{') || *requested == expected)
    };
    paths.iter().find(|(template, _)| fits(template))
}
