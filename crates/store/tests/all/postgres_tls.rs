//! Encrypted connections to PostgreSQL. The server accepts only TLS, with a certificate from a CA created
//! for the test.

use std::sync::OnceLock;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use sapwood_core::StoreError;
use sapwood_core::port::store::Sessions;
use sapwood_store::conformance::block_on;
use sapwood_store::conformance::cluster::{ADMIN, Cluster};
use sapwood_store::postgres::PgStore;

/// A server that requires TLS, and the CAs of the test.
struct TlsServer {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

fn ca() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    (certificate, Issuer::new(params, key))
}

impl TlsServer {
    /// Start a server whose certificate is valid for the name `localhost`, but not for the address.
    fn start() -> Self {
        let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
        let ((certificate, issuer), (other, _)) = (ca(), ca());
        std::fs::write(dir.path().join("ca.pem"), certificate).unwrap();
        std::fs::write(dir.path().join("other.pem"), other).unwrap();
        std::fs::write(dir.path().join("empty.pem"), "").unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &issuer).unwrap();
        cluster.configure(&[
            ("ssl_cert_file", &cluster.put_file("server.pem", &signed.pem())),
            ("ssl_key_file", &cluster.put_file("server.key", &key.serialize_pem())),
            ("ssl", "on"),
            ("hba_file", &cluster.put_file("hba", "hostssl all all 127.0.0.1/32 trust\n")),
        ]);
        // The server reads the `hba_file` setting only at startup.
        cluster.crash();
        cluster.resume();
        Self { cluster, dir }
    }

    fn open(&self, host: &str, options: &str) -> Result<PgStore, StoreError> {
        let options = options.replace("DIR", &self.dir.path().display().to_string());
        PgStore::open(&format!("postgres://{ADMIN}@{host}:{}/postgres?{options}", self.cluster.port))
    }

    /// Return the number of encrypted connections and of all connections.
    fn encrypted(&self) -> String {
        let sql =
            "SELECT count(*) FILTER (WHERE ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                   WHERE application_name LIKE 'sapwood%'";
        self.cluster.sql("postgres", sql).trim().to_owned()
    }
}

fn server() -> &'static TlsServer {
    static SERVER: OnceLock<TlsServer> = OnceLock::new();
    SERVER.get_or_init(TlsServer::start)
}

fn refusal(host: &str, options: &str) -> StoreError {
    server().open(host, options).err().unwrap_or_else(|| panic!("{host} with {options} was accepted"))
}

#[test]
fn connections_without_verification_are_still_encrypted() {
    for options in ["", "sslmode=prefer", "sslmode=require"] {
        let store = server().open("127.0.0.1", options).unwrap();
        block_on(store.summary(&super::postgres::ana(), &"s".parse().unwrap())).unwrap_err();
        let encrypted = server().encrypted();
        let (ours, all) = encrypted.split_once('|').unwrap();
        assert!(ours == all && all != "0", "{options}: {encrypted}");
    }
}

#[test]
fn a_server_with_a_valid_certificate_is_accepted() {
    server().open("localhost", "sslmode=verify-full&sslrootcert=DIR/ca.pem").unwrap();
    server().open("localhost", "sslmode=verify-ca&sslrootcert=DIR/ca.pem").unwrap();
    server().open("127.0.0.1", "sslmode=verify-ca&sslrootcert=DIR/ca.pem").unwrap();
    server().open("127.0.0.1", "sslmode=require&sslrootcert=DIR/ca.pem").unwrap();
}

#[test]
fn a_certificate_from_another_ca_is_refused_without_retry() {
    for mode in ["verify-full", "verify-ca", "require"] {
        let began = std::time::Instant::now();
        let error = refusal("localhost", &format!("sslmode={mode}&sslrootcert=DIR/other.pem"));
        assert_eq!(error.code(), "store.untrusted", "{mode}: {error}");
        assert!(error.to_string().contains("localhost"), "{error}");
        assert!(began.elapsed().as_secs() < 10, "the connection is not retried");
    }
    let error = refusal("localhost", "sslmode=verify-full");
    assert_eq!(error.code(), "store.untrusted", "no system CA signed the certificate: {error}");
}

#[test]
fn the_error_for_a_wrong_host_name_contains_the_certificate_name() {
    let error = refusal("127.0.0.1", "sslmode=verify-full&sslrootcert=DIR/ca.pem");
    assert_eq!(error.code(), "store.untrusted", "{error}");
    assert!(error.to_string().contains("localhost"), "{error}");
}

#[test]
fn a_refused_plain_connection_reports_the_servers_message() {
    let error = refusal("127.0.0.1", "sslmode=disable");
    assert!(error.to_string().contains("no encryption"), "{error}");
}

#[test]
fn an_unreadable_ca_file_is_reported_before_connecting() {
    for file in ["missing", "empty"] {
        let error = refusal("localhost", &format!("sslmode=verify-full&sslrootcert=DIR/{file}.pem"));
        assert_eq!(error.code(), "input.invalid", "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn sslmode_require_refuses_a_server_without_tls() {
    let plain = sapwood_store::conformance::cluster::shared();
    let url = format!("{}?sslmode=require", plain.new_database());
    let error = PgStore::open(&url).err().unwrap();
    assert!(error.to_string().contains("does not support TLS"), "{error}");
}
