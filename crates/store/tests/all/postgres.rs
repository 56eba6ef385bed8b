//! Run the conformance suite on the PostgreSQL store, with a server started by the tests.

use std::sync::Arc;

use sapwood_core::entry::UserMessage;
use sapwood_core::port::store::{
    Append, Fork, Log, NewSession, Repair, Search, SearchQuery, Sessions, Until, Upkeep,
};
use sapwood_core::{Draft, Part, Scope, Seq, SessionId, Store, TimestampMs};
use sapwood_store::conformance::cluster::{self, ADMIN};
use sapwood_store::conformance::{Harness, block_on};
use sapwood_store::postgres::PgStore;

/// A new, empty database.
struct OneDatabase(String);

impl OneDatabase {
    fn new() -> Self {
        Self(cluster::shared().new_database())
    }
}

impl Harness for OneDatabase {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(PgStore::open(&self.0).unwrap())
    }
    fn persists(&self) -> bool {
        true
    }
    /// The database's clock cannot be moved, so move the lease deadlines instead.
    fn pass_time(&self, ms: i64) {
        // Lock the rows in the same order as batches of appends do, to avoid a deadlock.
        let sql = format!(
            "WITH held AS (SELECT tenant, pk FROM sapwood.sessions WHERE lease_until > 0
                           ORDER BY tenant, pk FOR NO KEY UPDATE)
             UPDATE sapwood.sessions s SET version = version + 1, lease_until = lease_until - {ms}
             FROM held WHERE s.tenant = held.tenant AND s.pk = held.pk"
        );
        cluster::shared().sql(database_of(&self.0), &sql);
    }
}

mod suite {
    use super::OneDatabase;
    sapwood_store::conformance_tests!(OneDatabase::new());
}

pub fn ana() -> Scope {
    Scope::user("acme".parse().unwrap(), "ana".parse().unwrap())
}

pub async fn append_text(store: &PgStore, session: &SessionId, text: &str) {
    let draft = Draft::new(TimestampMs(1), UserMessage { parts: vec![Part::text(text)], origin: None });
    store.append(&ana(), Append::new(session.clone(), TimestampMs(1), vec![draft])).await.unwrap();
}

/// Create a store in which one tenant has one message.
async fn with_one_message(url: &str) -> PgStore {
    let store = PgStore::open(url).unwrap();
    let session: SessionId = "s".parse().unwrap();
    store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1))).await.unwrap();
    append_text(&store, &session, "lighthouse").await;
    store
}

pub fn database_of(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

const TABLES: [&str; 4] = ["sessions", "entries", "audit", "texts"];

#[test]
fn a_query_without_a_tenant_sees_nothing() {
    let (cluster, url) = (cluster::shared(), cluster::shared().new_database());
    let store = block_on(with_one_message(&url));
    let find = SearchQuery { text: "lighthouse".to_owned(), ..SearchQuery::default() };
    assert_eq!(block_on(store.search(&ana(), &find)).unwrap().items.len(), 1);
    let count = |set: &str, table: &str| {
        let sql = format!("SET ROLE sapwood_app; {set} SELECT count(*) FROM sapwood.{table}");
        cluster.sql(database_of(&url), &sql).lines().last().unwrap().to_owned()
    };
    for table in TABLES {
        assert_eq!(count("", table), "0", "{table}, with no tenant");
        assert_eq!(count("SET sapwood.tenant = 'globex';", table), "0", "{table}, as another tenant");
        assert_eq!(count("SET sapwood.tenant = 'acme';", table), "1", "{table}, as its own tenant");
    }
    let found = |tenant: &str| {
        let sql = format!(
            "SET ROLE sapwood_app; SET sapwood.tenant = '{tenant}';
             SELECT count(*) FROM sapwood.find_texts('acme', 'lighthouse', 9999999999999, 9999, 9999, 10)"
        );
        cluster
            .sql(database_of(&url), &format!("SET search_path = sapwood; {sql}"))
            .lines()
            .last()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        (found("acme").as_str(), found("globex").as_str()),
        ("1", "0"),
        "the search index is restricted, too"
    );
}

#[test]
fn row_security_applies_to_an_owner_without_createrole() {
    let cluster = cluster::shared();
    let database = database_of(&cluster.new_database()).to_owned();
    cluster.sql("postgres", "CREATE ROLE plain LOGIN NOSUPERUSER NOCREATEROLE");
    cluster.sql("postgres", &format!("ALTER DATABASE {database} OWNER TO plain"));
    let url = cluster.url_of("plain", &database);
    let store = block_on(with_one_message(&url));
    let find = SearchQuery { text: "lighthouse".to_owned(), ..SearchQuery::default() };
    assert_eq!(block_on(store.search(&ana(), &find)).unwrap().items.len(), 1);
    for table in ["sessions", "entries", "audit"] {
        let sql = format!("SET ROLE plain; SELECT count(*) FROM sapwood.{table}");
        assert_eq!(cluster.sql(&database, &sql).lines().last(), Some("0"), "{table}");
    }
}

#[test]
fn a_newer_schema_is_refused_and_not_changed() {
    let (cluster, url) = (cluster::shared(), cluster::shared().new_database());
    drop(block_on(with_one_message(&url)));
    cluster.sql(database_of(&url), "INSERT INTO sapwood.layout VALUES (99)");
    let refused = PgStore::open(&url).err().unwrap();
    assert_eq!(refused.code(), "store.too_new");
    assert!(refused.to_string().contains("99"), "{refused}");
    assert_eq!(cluster.sql(database_of(&url), "SELECT count(*) FROM sapwood.entries").trim(), "1");
}

#[test]
fn concurrent_opens_of_an_empty_database_create_one_schema() {
    let url = cluster::shared().new_database();
    std::thread::scope(|scope| {
        let open: Vec<_> = (0..6).map(|_| scope.spawn(|| PgStore::open(&url).map(|_| ()))).collect();
        for opened in open {
            opened.join().unwrap().unwrap();
        }
    });
    let steps = "SELECT count(*) = max(step) FROM sapwood.layout";
    assert_eq!(cluster::shared().sql(database_of(&url), steps).trim(), "t");
}

#[test]
fn the_unreachable_server_error_does_not_contain_the_password() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let error = PgStore::open(&format!("postgres://{ADMIN}:quagmire@127.0.0.1:{port}/x")).err().unwrap();
    assert_eq!(error.code(), "store.unreachable");
    let message = error.to_string();
    assert!(
        message.contains(&format!("{ADMIN}@127.0.0.1:{port}/x")) && !message.contains("quagmire"),
        "{message}"
    );
    let error = PgStore::open("postgres://").err().unwrap();
    assert_eq!(error.code(), "input.invalid");
}

#[test]
fn the_doctor_repairs_lost_rows() {
    let (cluster, url) = (cluster::shared(), cluster::shared().new_database());
    let store = block_on(with_one_message(&url));
    let find = SearchQuery { text: "lighthouse".to_owned(), ..SearchQuery::default() };
    assert_eq!(block_on(store.search(&ana(), &find)).unwrap().items.len(), 1);
    cluster.sql(
        database_of(&url),
        "DELETE FROM sapwood.texts; UPDATE sapwood.entries SET depth = 7;
         UPDATE sapwood.sessions SET summary = replace(summary, '\"turns\":0', '\"turns\":5')",
    );
    let rules = |repair| -> Vec<&'static str> {
        let found = block_on(store.check(&operator(), repair)).unwrap();
        found.iter().map(|finding| finding.rule).collect()
    };
    assert_eq!(rules(Repair::No), ["links", "index"]);
    assert_eq!(rules(Repair::Yes), ["links", "index", "cache"]);
    assert_eq!(rules(Repair::No), [""; 0]);
    assert_eq!(block_on(store.search(&ana(), &find)).unwrap().items.len(), 1);
    assert_eq!(block_on(store.summary(&ana(), &"s".parse().unwrap())).unwrap().turns, 0);
}

fn operator() -> Scope {
    Scope::operator(ana().tenant, ana().principal)
}

/// Return the number of log rows read so far. Waits until the store's connections are closed.
fn rows_read(url: &str) -> u64 {
    let (cluster, database) = (cluster::shared(), database_of(url));
    let left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sapwood%'";
    for _ in 0..100 {
        if cluster.sql(database, left).trim() == "0" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let read = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'entries'";
    cluster.sql(database, read).trim().parse().unwrap()
}

#[test]
fn a_long_session_is_not_fully_read_without_planner_statistics() {
    const BATCHES: u32 = 5;
    let url = cluster::shared().new_database();
    let session: SessionId = "long".parse().unwrap();
    let store = PgStore::open(&url).unwrap();
    let draft = || Draft::new(TimestampMs(1), UserMessage { parts: vec![Part::text("x")], origin: None });
    block_on(store.create(&ana(), NewSession::new(session.clone(), TimestampMs(1)))).unwrap();
    for _ in 0..BATCHES {
        let drafts = std::iter::repeat_with(draft).take(1_000).collect();
        block_on(store.append(&ana(), Append::new(session.clone(), TimestampMs(1), drafts))).unwrap();
    }
    drop(store);
    let before = rows_read(&url);
    let store = PgStore::open(&url).unwrap();
    for number in 0..4 {
        let new = NewSession::new(format!("fork-{number}").parse().unwrap(), TimestampMs(1));
        let at = Some(Seq(BATCHES * 500));
        block_on(store.fork(&ana(), Fork { source: session.clone(), at, new, drafts: Vec::new() })).unwrap();
        block_on(append_text(&store, &session, "y"));
        block_on(store.read_path(&ana(), &session, None, Until::Entries(10))).unwrap();
    }
    drop(store);
    let read = rows_read(&url) - before;
    assert!(read > 40, "{read} rows: the statistics are not updated yet");
    assert!(read < 1_000, "{read} of {} log rows were read", BATCHES * 1_000);
}
