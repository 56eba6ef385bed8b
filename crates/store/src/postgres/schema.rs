//! The layout of the database. Migration steps are forward-only and run in one transaction each,
//! under a lock that all processes share. A failed step changes nothing, and a newer layout is
//! rejected. In addition to the tables there is a role that owns nothing, so that row-level
//! security applies to it.
//!
//! A step sees the rows of all tenants, even where the policies are forced on the owner of the
//! tables: they are lifted while it runs, within its transaction.

use sapwood_core::StoreError;
use sapwood_core::port::store::Result;
use tokio_postgres::Client;

use super::connect::{Acting, ROLE, Server};
use super::error::translate;

/// Each step migrates the layout of its number to the next. Never change a released step.
const STEPS: &[&str] =
    &[include_str!("layout-1.sql"), include_str!("layout-2.sql"), include_str!("layout-3.sql")];

/// Columns that servers of the previous version neither read nor write. They are added outside the
/// steps, so that servers can be upgraded one by one.
const ADDITIONS: &str = "ALTER TABLE sapwood.sessions ADD COLUMN IF NOT EXISTS authority text";
const HAS_ADDITIONS: &str =
    "SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'sapwood.sessions'::regclass
                                            AND attname = 'authority' AND NOT attisdropped)";

/// Key of the migration lock: "Sapwood" as a number, which other programs are unlikely to use.
const LOCK: i64 = 0x5361_7077_6f6f_6401;

/// While a step runs, the policies do not apply to the owner, but still to other roles.
const LIFT_FENCE: &str = "DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'sapwood'::regnamespace AND relforcerowsecurity LOOP
      EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', name);
    END LOOP;
  END $$;";
/// All tables with a policy except the search index: see the first step.
const FORCE_FENCE: &str = "DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'sapwood'::regnamespace AND relrowsecurity
                                               AND relname <> 'texts' LOOP
      EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    END LOOP;
  END $$;";

/// Migrates the layout. Returns the role that the pool can act as.
pub(super) async fn migrate(server: &Server) -> Result<Acting> {
    migrate_by(server, STEPS).await
}

async fn migrate_by(server: &Server, steps: &[&str]) -> Result<Acting> {
    let client = server.connect(Acting::Owner, |_| ()).await?;
    let run = Run { client: &client, place: &server.place, steps };
    if run.found().await? != Some(steps.len()) || !run.has_additions().await? {
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
    steps: &'c [&'c str],
}

impl Run<'_> {
    async fn batch(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(|error| translate(&error, self.place))
    }

    /// Returns how many steps the database has, or `None` if it is empty.
    async fn found(&self) -> Result<Option<usize>> {
        let fault = |error| translate(&error, self.place);
        let sql = "SELECT to_regclass('sapwood.layout') IS NOT NULL";
        if !self.client.query_one(sql, &[]).await.map_err(fault)?.get::<_, bool>(0) {
            return Ok(None);
        }
        let row = self.client.query_one("SELECT max(step) FROM sapwood.layout", &[]).await.map_err(fault)?;
        let found = row.get::<_, Option<i32>>(0).and_then(|step| usize::try_from(step).ok());
        match found {
            Some(found) if found > self.steps.len() => Err(StoreError::TooNew {
                place: self.place.to_owned(),
                found: u32::try_from(found).unwrap_or(u32::MAX),
                known: u32::try_from(self.steps.len()).unwrap_or(u32::MAX),
            }),
            found => Ok(found),
        }
    }

    async fn climb(&self) -> Result<()> {
        let found = self.found().await?.unwrap_or(0);
        for (number, step) in self.steps.iter().enumerate().skip(found) {
            let prepare = match number {
                0 => {
                    "CREATE SCHEMA IF NOT EXISTS sapwood; CREATE TABLE sapwood.layout (step integer PRIMARY KEY);"
                }
                _ => "",
            };
            let sql = format!(
                "BEGIN; {prepare} SET LOCAL search_path = sapwood; SET LOCAL row_security = off;
                 {LIFT_FENCE} {step}; {FORCE_FENCE}
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
        match self.has_additions().await? {
            true => Ok(()),
            false => self.batch(ADDITIONS).await,
        }
    }

    async fn has_additions(&self) -> Result<bool> {
        let found = self.client.query_one(HAS_ADDITIONS, &[]).await;
        Ok(found.map_err(|error| translate(&error, self.place))?.get(0))
    }
}

/// Creates the role if permitted, and grants it access to the rows. If not permitted, an
/// administrator can create the role beforehand. Otherwise the pool acts as the owner, on which the
/// policies are forced.
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

#[cfg(all(test, feature = "conformance"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use sapwood_core::entry::UserMessage;
    use sapwood_core::port::store::{Append, Log, NewSession, Sessions};
    use sapwood_core::{Draft, Part, Scope, Seq, SessionId, TimestampMs};

    use super::*;
    use crate::conformance::block_on;
    use crate::conformance::cluster::{self, Cluster};
    use crate::postgres::PgStore;
    use crate::postgres::connect::Home;

    const TENANTS: [&str; 2] = ["acme", "globex"];
    /// A step that reads the rows of every tenant, and that fails if it runs twice.
    const NEXT: &str = "ALTER TABLE sessions ADD COLUMN told integer;
        UPDATE sessions s SET told = (SELECT count(*) FROM entries e WHERE e.tenant = s.tenant AND e.session = s.pk);
        CREATE TABLE taken (by integer); INSERT INTO taken VALUES (pg_backend_pid())";
    /// A step that fails after it has changed rows.
    const FAILING: &str =
        "ALTER TABLE sessions ADD COLUMN half text; UPDATE sessions SET head = 7; SELECT 1 / 0";

    fn steps_and(next: &'static str) -> Vec<&'static str> {
        STEPS.iter().copied().chain([next]).collect()
    }

    /// Migrates like a separate server that starts.
    fn climb(url: &str, steps: &[&str]) -> Result<()> {
        let (server, home) = (Server::parse(url)?, Home::new()?);
        home.block_on(migrate_by(&server, steps)).map(|_| ())
    }

    fn scope(tenant: &str) -> Scope {
        Scope::user(tenant.parse().unwrap(), "ana".parse().unwrap())
    }

    fn session() -> SessionId {
        "s".parse().unwrap()
    }

    /// Creates a database of the current layout in which each tenant has two messages.
    fn filled(url: &str) {
        let store = PgStore::open(url).unwrap();
        for tenant in TENANTS {
            let new = NewSession::new(session(), TimestampMs(1));
            block_on(store.create(&scope(tenant), new)).unwrap();
            let said = |text| UserMessage { parts: vec![Part::text(text)], origin: None };
            let drafts = ["one", "two"].map(|text| Draft::new(TimestampMs(1), said(text)));
            let append = Append::new(session(), TimestampMs(1), drafts.to_vec());
            block_on(store.append(&scope(tenant), append)).unwrap();
        }
    }

    fn assert_all_is_there(url: &str) {
        let store = PgStore::open(url).unwrap();
        for tenant in TENANTS {
            let log = block_on(store.read_after(&scope(tenant), &session(), Seq::ZERO, 10)).unwrap();
            let texts: Vec<String> = log.iter().map(|record| record.decode().unwrap().text()).collect();
            assert_eq!(texts, ["one", "two"], "{tenant}");
        }
    }

    fn ask(url: &str, sql: &str) -> String {
        cluster::shared().sql(url.rsplit('/').next().unwrap(), sql).trim().to_owned()
    }

    /// Creates an owner to which the policies apply, because it may not create roles.
    fn bound_owner(cluster: &Cluster, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap();
        cluster.sql("postgres", "CREATE ROLE bound LOGIN NOSUPERUSER NOCREATEROLE");
        cluster.sql("postgres", &format!("ALTER DATABASE {database} OWNER TO bound"));
        cluster.url_of("bound", database)
    }

    #[test]
    fn a_step_changes_a_database_in_place_and_keeps_its_rows() {
        let url = cluster::shared().new_database();
        filled(&url);
        climb(&url, &steps_and(NEXT)).unwrap();
        assert_eq!(ask(&url, "SELECT max(step) FROM sapwood.layout"), (STEPS.len() + 1).to_string());
        assert_eq!(ask(&url, "SELECT string_agg(told::text, ',') FROM sapwood.sessions"), "2,2");
        ask(&url, &format!("DELETE FROM sapwood.layout WHERE step > {}", STEPS.len()));
        assert_all_is_there(&url);
    }

    #[test]
    fn blobs_of_the_layout_before_pieces_stay_where_they_are() {
        let url = cluster::shared().new_database();
        climb(&url, &STEPS[..2]).unwrap();
        ask(
            &url,
            "INSERT INTO sapwood.blobs VALUES ('acme', '\\x01', 0, 'small'), ('acme', '\\x02', 0, 'other')",
        );
        climb(&url, STEPS).unwrap();
        let kept = "SELECT string_agg(convert_from(data, 'UTF8'), ',' ORDER BY hash) FROM sapwood.blobs WHERE cut IS NULL";
        assert_eq!(ask(&url, kept), "small,other");
    }

    #[test]
    fn a_step_sees_every_tenant_even_if_the_policies_apply_to_the_owner() {
        let url = bound_owner(cluster::shared(), &cluster::shared().new_database());
        filled(&url);
        let forced = "SELECT count(*) FROM pg_class WHERE relnamespace = 'sapwood'::regnamespace AND relforcerowsecurity";
        let before = ask(&url, forced);
        climb(&url, &steps_and(NEXT)).unwrap();
        assert_eq!(ask(&url, "SELECT string_agg(told::text, ',') FROM sapwood.sessions"), "2,2");
        assert_eq!(ask(&url, forced), before, "the policies apply again afterwards");
        assert_ne!(before, "0");
    }

    #[test]
    fn servers_that_start_concurrently_run_a_step_once() {
        let url = cluster::shared().new_database();
        filled(&url);
        std::thread::scope(|scope| {
            let climb = || climb(&url, &steps_and(NEXT));
            let climbing: Vec<_> = (0..5).map(|_| scope.spawn(climb)).collect();
            for climbed in climbing {
                climbed.join().unwrap().unwrap();
            }
        });
        assert_eq!(ask(&url, "SELECT count(*) FROM sapwood.taken"), "1");
    }

    #[test]
    fn a_failed_step_changes_nothing_and_releases_the_lock() {
        let url = cluster::shared().new_database();
        filled(&url);
        let failed = climb(&url, &steps_and(FAILING)).unwrap_err();
        assert!(failed.to_string().contains("division by zero"), "{failed}");
        assert_eq!(ask(&url, "SELECT max(step) FROM sapwood.layout"), STEPS.len().to_string());
        let half = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'half'";
        assert_eq!(ask(&url, half), "0");
        assert_all_is_there(&url);
        climb(&url, &steps_and(NEXT)).unwrap();
    }

    #[test]
    fn an_older_server_rejects_a_newer_layout() {
        let url = cluster::shared().new_database();
        filled(&url);
        climb(&url, &steps_and(NEXT)).unwrap();
        let refused = PgStore::open(&url).err().unwrap();
        assert_eq!(refused.code(), "store.too_new");
    }
}
