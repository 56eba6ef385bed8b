//! Measures the maximum insert rate of PostgreSQL on this machine, for comparison by
//! `sapwood bench`: one table, one text column, and a commit per row, from many concurrent
//! connections. Only the benchmark uses this module.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::connect::{DbRole, Server, StoreRuntime};

type Result<T> = std::result::Result<T, String>;

fn error_text(error: impl ToString) -> String {
    error.to_string()
}

/// Runs a statement that cannot run in a transaction, such as `CREATE DATABASE`.
pub fn run(url: &str, sql: &str) -> Result<()> {
    let (server, runtime) =
        (Server::parse(url).map_err(error_text)?, StoreRuntime::new().map_err(error_text)?);
    runtime.block_on(async {
        let client = server.connect(DbRole::Owner, |_| ()).await.map_err(error_text)?;
        client.batch_execute(sql).await.map_err(error_text)
    })
}

/// Inserts `bodies`, distributed over the connections, with one commit per row. Returns the elapsed
/// time.
pub fn plain_inserts(url: &str, connections: usize, bodies: &[Vec<u8>]) -> Result<Duration> {
    run(url, "CREATE TABLE IF NOT EXISTS public.plain (id bigserial PRIMARY KEY, body text)")?;
    let (server, runtime) =
        (Server::parse(url).map_err(error_text)?, StoreRuntime::new().map_err(error_text)?);
    runtime.block_on(async {
        let start = Arc::new(Barrier::new(connections + 1));
        let mut running = JoinSet::new();
        for number in 0..connections {
            let client = server.connect(DbRole::Owner, |_| ()).await.map_err(error_text)?;
            let mine: Vec<Vec<u8>> = bodies.iter().skip(number).step_by(connections).cloned().collect();
            running.spawn(insert_all(client, mine, start.clone()));
        }
        start.wait().await;
        let began = Instant::now();
        while let Some(done) = running.join_next().await {
            done.map_err(error_text)??;
        }
        Ok(began.elapsed())
    })
}

async fn insert_all(client: Client, bodies: Vec<Vec<u8>>, start: Arc<Barrier>) -> Result<()> {
    let insert = client.prepare("INSERT INTO public.plain (body) VALUES ($1)").await.map_err(error_text)?;
    start.wait().await;
    for body in bodies {
        client.execute(&insert, &[&String::from_utf8_lossy(&body).as_ref()]).await.map_err(error_text)?;
    }
    Ok(())
}
