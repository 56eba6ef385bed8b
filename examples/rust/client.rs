//! A Rust client. It uses the server's own types, `sapwood_server::wire`, from which the OpenAPI document is generated.
//!
//! `cargo run -p sapwood-server --example client -- http://127.0.0.1:7420 "$KEY" "Hello"`

use sapwood_server::wire::{NewSession, NewTurn, Session};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Create a session, send a message, and pass the answer to `show` as it streams.
pub async fn talk(url: &str, key: &str, message: &str, mut show: impl FnMut(&str)) -> Result<(), Failure> {
    // This workspace builds reqwest without a crypto provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    let new = NewSession { agent: Some("default".to_owned()), ..NewSession::default() };
    let sessions = format!("{url}/v1/sessions");
    let created = http.post(&sessions).bearer_auth(key).json(&new).send().await?.error_for_status()?;
    let session: Session = created.json().await?;

    let turn = NewTurn { input: json!(message), stream: true, if_running: Default::default() };
    let turns = format!("{sessions}/{}/turns", session.id);
    let mut events = http.post(turns).bearer_auth(key).json(&turn).send().await?.error_for_status()?;
    let mut rest = String::new();
    while let Some(chunk) = events.chunk().await? {
        rest.push_str(&String::from_utf8_lossy(&chunk));
        while let Some(end) = rest.find('\n') {
            let line: String = rest.drain(..=end).collect();
            let Some(data) = line.strip_prefix("data:") else { continue };
            let event: Value = serde_json::from_str(data.trim())?;
            if event["type"] == "agent:token" {
                show(event["text"].as_str().unwrap_or_default());
            }
        }
    }
    Ok(())
}

#[allow(dead_code)] // The tests include only `talk`.
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().unwrap_or_default();
    let (url, key, message) = (next(), next(), next());
    talk(&url, &key, &message, |text| print!("{text}")).await?;
    println!();
    Ok(())
}
