//! The layout of the database. Migration steps are forward-only and run in one transaction each,
//! under a lock that all processes share. A failed step changes nothing, and a newer layout is
//! rejected. In addition to the tables there is a role that owns nothing, so that row-level
//! security applies to it.
//!
//! A step sees the rows of all tenants. Where the policies are forced on the owner of the tables,
//! they are lifted within the transaction of the step.

use sapwood_core::StoreError;
use sapwood_core::entry::{LOG_VERSION, LOG_VERSION_MIN};
use sapwood_core::port::store::Result;
use tokio_postgres::Client;

use super::connect::{DbRole, ROLE, Server};
use super::error::translate;
use super::records;

/// Each step migrates the previous layout to its own. Never change a released step.
const STEPS: &[&str] = &[
    include_str!("layout-1.sql"),
    include_str!("layout-2.sql"),
    include_str!("layout-3.sql"),
    include_str!("layout-4.sql"),
];
/// The layout that servers of the previous version use. An existing database stays at this layout,
/// in log format 2, until the operator upgrades it with `sapwood store upgrade`.
const SHARED_STEPS: usize = 3;

/// The steps to apply to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// All steps for a new database, else the steps that servers of the previous version know.
    Shared,
    /// All steps.
    Newest,
}

/// Columns and tables that servers of the previous version neither read nor write. They are added
/// outside the steps, so that servers can be upgraded one by one.
const ADDITIONS: &str = "ALTER TABLE sapwood.sessions ADD COLUMN IF NOT EXISTS authority text";
const HAS_ADDITIONS: &str = "SELECT to_regclass('sapwood.spending') IS NOT NULL AND
            EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'sapwood.sessions'::regclass
                                               AND attname = 'authority' AND NOT attisdropped)";

/// Key of the migration lock: the bytes of "Sapwood", which other programs are unlikely to use.
const LOCK: i64 = 0x5361_7077_6f6f_6401;

/// Lifts the policies for the owner while a step runs. They still apply to other roles.
const LIFT_POLICIES: &str = "DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'sapwood'::regnamespace AND relforcerowsecurity LOOP
      EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', name);
    END LOOP;
  END $$;";
/// Forces the policies on the owner of all tables except the search index: see the first step.
const FORCE_POLICIES: &str = "DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'sapwood'::regnamespace AND relrowsecurity
                                               AND relname <> 'texts' LOOP
      EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    END LOOP;
  END $$;";

/// Migrates the layout as far as servers of the previous version allow. Returns the role that the
/// pool can act as, and the format version to write.
pub(super) async fn migrate(server: &Server) -> Result<(DbRole, u32)> {
    migrate_by(server, STEPS, Target::Shared).await
}

/// Migrates the database to the newest layout. Servers of the previous version can no longer use it.
pub(super) async fn upgrade(server: &Server) -> Result<()> {
    migrate_by(server, STEPS, Target::Newest).await.map(|_| ())
}

/// The SQL that returns the number of applied steps.
pub(super) const APPLIED_STEPS: &str = "SELECT max(step) FROM sapwood.layout";

/// Returns the format version to write to a database with this many applied steps.
pub(super) fn format_of(steps: Option<i32>) -> u32 {
    let is_shared =
        steps.is_some_and(|steps| usize::try_from(steps).is_ok_and(|steps| steps <= SHARED_STEPS));
    if is_shared { LOG_VERSION_MIN } else { LOG_VERSION }
}

pub(super) fn newest() -> u32 {
    u32::try_from(STEPS.len()).unwrap_or(u32::MAX)
}

async fn migrate_by(server: &Server, steps: &[&str], target: Target) -> Result<(DbRole, u32)> {
    let client = server.connect(DbRole::Owner, |_| ()).await?;
    let migration = Migration { client: &client, place: &server.place, steps, target };
    if !migration.is_done(migration.applied_steps().await?) || !migration.has_additions().await? {
        migration.batch(&format!("SELECT pg_advisory_lock({LOCK})")).await?;
        let migrated = migration.apply_steps().await;
        migration.batch(&format!("SELECT pg_advisory_unlock({LOCK})")).await?;
        migrated?;
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = $1) AND
               coalesce((SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = $1), false)";
    let row = client.query_one(sql, &[&ROLE]).await.map_err(|error| translate(&error, &server.place))?;
    let role = if row.get(0) { DbRole::App } else { DbRole::Owner };
    let applied = migration.applied_steps().await?.and_then(|steps| i32::try_from(steps).ok());
    Ok((role, format_of(applied)))
}

struct Migration<'c> {
    client: &'c Client,
    place: &'c str,
    steps: &'c [&'c str],
    target: Target,
}

impl Migration<'_> {
    /// Returns how many steps a database with `found` steps should have.
    fn wanted(&self, found: Option<usize>) -> usize {
        match found {
            Some(found) if self.target == Target::Shared && found <= SHARED_STEPS => SHARED_STEPS,
            _ => self.steps.len(),
        }
    }

    fn is_done(&self, found: Option<usize>) -> bool {
        found == Some(self.wanted(found))
    }

    async fn batch(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(|error| translate(&error, self.place))
    }

    /// Returns how many steps have been applied, or `None` if the database is empty.
    async fn applied_steps(&self) -> Result<Option<usize>> {
        let to_store_error = |error| translate(&error, self.place);
        let sql = "SELECT to_regclass('sapwood.layout') IS NOT NULL";
        if !self.client.query_one(sql, &[]).await.map_err(to_store_error)?.get::<_, bool>(0) {
            return Ok(None);
        }
        let row = self.client.query_one(APPLIED_STEPS, &[]).await.map_err(to_store_error)?;
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

    /// The SQL of a step, for a transaction.
    fn step(&self, number: usize) -> String {
        let prepare = match number {
            0 => {
                "CREATE SCHEMA IF NOT EXISTS sapwood; CREATE TABLE sapwood.layout (step integer PRIMARY KEY);"
            }
            _ => "",
        };
        format!(
            "{prepare} SET LOCAL search_path = sapwood; SET LOCAL row_security = off;
             {LIFT_POLICIES} {}; {FORCE_POLICIES}
             INSERT INTO sapwood.layout VALUES ({}); {}\n",
            self.steps[number],
            number + 1,
            grants(),
        )
    }

    async fn apply_steps(&self) -> Result<()> {
        let found = self.applied_steps().await?;
        let wanted = self.wanted(found);
        let steps: String = (found.unwrap_or(0)..wanted).map(|number| self.step(number)).collect();
        // One transaction: a new database whose creation is interrupted must not look like one of the previous version.
        let applied = self.batch(&format!("BEGIN; {steps} COMMIT")).await;
        if applied.is_err() {
            self.batch("ROLLBACK").await?;
        }
        applied?;
        match self.has_additions().await? {
            true => Ok(()),
            false => self.add().await,
        }
    }

    async fn add(&self) -> Result<()> {
        let sql = format!(
            "BEGIN; SET LOCAL search_path = sapwood; {ADDITIONS}; {} {} COMMIT",
            records::TABLES,
            grants()
        );
        let added = self.batch(&sql).await;
        if added.is_err() {
            self.batch("ROLLBACK").await?;
        }
        added
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
    use crate::postgres::connect::StoreRuntime;

    const TENANTS: [&str; 2] = ["acme", "globex"];
    /// A step that reads the rows of every tenant, and that fails if it runs twice.
    const NEXT: &str = "ALTER TABLE sessions ADD COLUMN entry_count integer;
        UPDATE sessions s SET entry_count = (SELECT count(*) FROM entries e WHERE e.tenant = s.tenant AND e.session = s.pk);
        CREATE TABLE taken (by integer); INSERT INTO taken VALUES (pg_backend_pid())";
    /// A step that fails after it has changed rows.
    const FAILING: &str =
        "ALTER TABLE sessions ADD COLUMN half text; UPDATE sessions SET head = 7; SELECT 1 / 0";

    fn steps_and(next: &'static str) -> Vec<&'static str> {
        STEPS.iter().copied().chain([next]).collect()
    }

    /// Applies all given steps that the database lacks.
    fn migrate_with(url: &str, steps: &[&str]) -> Result<()> {
        let (server, runtime) = (Server::parse(url)?, StoreRuntime::new()?);
        runtime.block_on(migrate_by(&server, steps, Target::Newest)).map(|_| ())
    }

    fn scope(tenant: &str) -> Scope {
        Scope::user(tenant.parse().unwrap(), "ana".parse().unwrap())
    }

    fn session() -> SessionId {
        "s".parse().unwrap()
    }

    /// Creates a database of the current layout in which each tenant has two messages.
    fn create_filled(url: &str) {
        let store = PgStore::open(url).unwrap();
        for tenant in TENANTS {
            let new = NewSession::new(session(), TimestampMs(1));
            block_on(store.create(&scope(tenant), new)).unwrap();
            let message = |text| UserMessage { parts: vec![Part::text(text)], origin: None };
            let drafts = ["one", "two"].map(|text| Draft::new(TimestampMs(1), message(text)));
            let append = Append::new(session(), TimestampMs(1), drafts.to_vec());
            block_on(store.append(&scope(tenant), append)).unwrap();
        }
    }

    fn assert_rows_are_intact(url: &str) {
        let store = PgStore::open(url).unwrap();
        for tenant in TENANTS {
            let log = block_on(store.read_after(&scope(tenant), &session(), Seq::ZERO, 10)).unwrap();
            let texts: Vec<String> = log.iter().map(|record| record.decode().unwrap().text()).collect();
            assert_eq!(texts, ["one", "two"], "{tenant}");
        }
    }

    fn query(url: &str, sql: &str) -> String {
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
        create_filled(&url);
        migrate_with(&url, &steps_and(NEXT)).unwrap();
        assert_eq!(query(&url, "SELECT max(step) FROM sapwood.layout"), (STEPS.len() + 1).to_string());
        assert_eq!(query(&url, "SELECT string_agg(entry_count::text, ',') FROM sapwood.sessions"), "2,2");
        query(&url, &format!("DELETE FROM sapwood.layout WHERE step > {}", STEPS.len()));
        assert_rows_are_intact(&url);
    }

    #[test]
    fn blobs_of_the_layout_before_chunks_stay_in_their_rows() {
        let url = cluster::shared().new_database();
        migrate_with(&url, &STEPS[..2]).unwrap();
        query(
            &url,
            "INSERT INTO sapwood.blobs VALUES ('acme', '\\x01', 0, 'small'), ('acme', '\\x02', 0, 'other')",
        );
        migrate_with(&url, STEPS).unwrap();
        let in_rows = "SELECT string_agg(convert_from(data, 'UTF8'), ',' ORDER BY hash) FROM sapwood.blobs WHERE cut IS NULL";
        assert_eq!(query(&url, in_rows), "small,other");
    }

    #[test]
    fn a_step_sees_every_tenant_even_if_the_policies_apply_to_the_owner() {
        let url = bound_owner(cluster::shared(), &cluster::shared().new_database());
        create_filled(&url);
        let forced = "SELECT count(*) FROM pg_class WHERE relnamespace = 'sapwood'::regnamespace AND relforcerowsecurity";
        let before = query(&url, forced);
        migrate_with(&url, &steps_and(NEXT)).unwrap();
        assert_eq!(query(&url, "SELECT string_agg(entry_count::text, ',') FROM sapwood.sessions"), "2,2");
        assert_eq!(query(&url, forced), before, "the policies apply again afterwards");
        assert_ne!(before, "0");
    }

    #[test]
    fn servers_that_start_concurrently_run_a_step_once() {
        let url = cluster::shared().new_database();
        create_filled(&url);
        std::thread::scope(|scope| {
            let migrate = || migrate_with(&url, &steps_and(NEXT));
            let migrations: Vec<_> = (0..5).map(|_| scope.spawn(migrate)).collect();
            for migration in migrations {
                migration.join().unwrap().unwrap();
            }
        });
        assert_eq!(query(&url, "SELECT count(*) FROM sapwood.taken"), "1");
    }

    #[test]
    fn a_failed_step_changes_nothing_and_releases_the_lock() {
        let url = cluster::shared().new_database();
        create_filled(&url);
        let failed = migrate_with(&url, &steps_and(FAILING)).unwrap_err();
        assert!(failed.to_string().contains("division by zero"), "{failed}");
        assert_eq!(query(&url, "SELECT max(step) FROM sapwood.layout"), STEPS.len().to_string());
        let half = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'half'";
        assert_eq!(query(&url, half), "0");
        assert_rows_are_intact(&url);
        migrate_with(&url, &steps_and(NEXT)).unwrap();
    }

    #[test]
    fn an_interrupted_creation_does_not_look_like_a_database_of_the_previous_version() {
        let url = cluster::shared().new_database();
        migrate_with(&url, &steps_and(FAILING)).unwrap_err();
        assert_eq!(query(&url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'sapwood'"), "0");
        drop(PgStore::open(&url).unwrap());
        assert_eq!(query(&url, "SELECT max(step) FROM sapwood.layout"), STEPS.len().to_string());
    }

    #[test]
    fn an_older_server_rejects_a_newer_layout() {
        let url = cluster::shared().new_database();
        create_filled(&url);
        migrate_with(&url, &steps_and(NEXT)).unwrap();
        let refused = PgStore::open(&url).err().unwrap();
        assert_eq!(refused.code(), "store.too_new");
    }
}
