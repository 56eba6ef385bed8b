//! The database's layout. Steps are forward only, each in one transaction, under a lock that all processes share; a newer
//! layout is refused. Beside the tables there is a role that owns nothing, for whom the policies hold.

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use tokio_postgres::Client;

use super::connect::{Acting, ROLE, Server};
use super::fault::translate;

/// Each step leads from the layout of its number to the next. Never change one that was released.
const STEPS: &[&str] = &[include_str!("layout-1.sql")];

/// "Sapwood", as a number that no other program is likely to lock.
const LOCK: i64 = 0x5361_7077_6f6f_6401;

/// Brings the layout up to date, and says whom the pool can act as.
pub(super) async fn migrate(server: &Server) -> Result<Acting> {
    let client = server.connect(Acting::Owner, |_| ()).await?;
    let run = Run { client: &client, place: &server.place };
    if run.found().await? != Some(STEPS.len()) {
        run.batch(&format!("SELECT pg_advisory_lock({LOCK})")).await?;
        let migrated = run.climb().await;
        run.batch(&format!("SELECT pg_advisory_unlock({LOCK})")).await?;
        migrated?;
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = $1) AND
               coalesce((SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = $1), false)";
    let row = client.query_one(sql, &[&ROLE]).await.map_err(|error| translate(&error, &server.place))?;
    Ok(if row.get(0) { Acting::Fenced } else { Acting::Owner })
}

struct Run<'c> {
    client: &'c Client,
    place: &'c str,
}

impl Run<'_> {
    async fn batch(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(|error| translate(&error, self.place))
    }

    /// How many steps were taken. None in an empty database.
    async fn found(&self) -> Result<Option<usize>> {
        let fault = |error| translate(&error, self.place);
        let sql = "SELECT to_regclass('sapwood.layout') IS NOT NULL";
        if !self.client.query_one(sql, &[]).await.map_err(fault)?.get::<_, bool>(0) {
            return Ok(None);
        }
        let row = self.client.query_one("SELECT max(step) FROM sapwood.layout", &[]).await.map_err(fault)?;
        let found = row.get::<_, Option<i32>>(0).and_then(|step| usize::try_from(step).ok());
        match found {
            Some(found) if found > STEPS.len() => Err(StoreError::TooNew {
                place: self.place.to_owned(),
                found: u32::try_from(found).unwrap_or(u32::MAX),
                known: u32::try_from(STEPS.len()).unwrap_or(u32::MAX),
            }),
            found => Ok(found),
        }
    }

    async fn climb(&self) -> Result<()> {
        let found = self.found().await?.unwrap_or(0);
        for (number, step) in STEPS.iter().enumerate().skip(found) {
            let prepare = match number {
                0 => {
                    "CREATE SCHEMA IF NOT EXISTS sapwood; CREATE TABLE sapwood.layout (step integer PRIMARY KEY);"
                }
                _ => "",
            };
            let sql = format!(
                "BEGIN; {prepare} SET LOCAL search_path = sapwood; SET LOCAL row_security = off; {step};
                 INSERT INTO sapwood.layout VALUES ({}); {} COMMIT",
                number + 1,
                grants(),
            );
            let taken = self.batch(&sql).await;
            if taken.is_err() {
                self.batch("ROLLBACK").await?;
            }
            taken?;
        }
        Ok(())
    }
}

/// Makes the role if we may, and lets it at the rows. Where we may not, an administrator can make it beforehand, or the
/// pool acts as the owner, for whom the policies are forced.
fn grants() -> String {
    format!(
        "DO $$ BEGIN
           CREATE ROLE {ROLE} NOLOGIN;
         EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
         END $$;
         DO $$ BEGIN
           GRANT {ROLE} TO CURRENT_USER;
         EXCEPTION WHEN OTHERS THEN NULL;
         END $$;
         DO $$ BEGIN
           IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}') THEN
             GRANT USAGE ON SCHEMA sapwood TO {ROLE};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sapwood TO {ROLE};
             REVOKE INSERT, UPDATE, DELETE ON layout FROM {ROLE};
           END IF;
         END $$;"
    )
}
