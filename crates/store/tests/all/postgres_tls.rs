//! Encrypted connections to PostgreSQL: a server with a certificate of a CA made for the test, which takes no others.

use std::sync::OnceLock;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use sapwood_core::StoreError;
use sapwood_core::port::store::Sessions;
use sapwood_store::conformance::block_on;
use sapwood_store::conformance::cluster::{ADMIN, Cluster};
use sapwood_store::postgres::PgStore;

/// A server that asks for TLS, and the CAs of the test.
struct Encrypted {
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

impl Encrypted {
    /// The certificate is for the name `localhost`, and not for the address.
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
        // Which file says who may come in is only read at the start.
        cluster.crash();
        cluster.resume();
        Self { cluster, dir }
    }

    fn open(&self, host: &str, options: &str) -> Result<PgStore, StoreError> {
        let options = options.replace("DIR", &self.dir.path().display().to_string());
        PgStore::open(&format!("postgres://{ADMIN}@{host}:{}/postgres?{options}", self.cluster.port))
    }

    /// How many of our connections are encrypted, of how many.
    fn encrypted(&self) -> String {
        let sql =
            "SELECT count(*) FILTER (WHERE ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                   WHERE application_name = 'sapwood'";
        self.cluster.sql("postgres", sql).trim().to_owned()
    }
}

fn server() -> &'static Encrypted {
    static SERVER: OnceLock<Encrypted> = OnceLock::new();
    SERVER.get_or_init(Encrypted::start)
}

fn refusal(host: &str, options: &str) -> StoreError {
    server().open(host, options).err().unwrap_or_else(|| panic!("{host} with {options} was taken"))
}

#[test]
fn whoever_asks_for_no_proof_is_encrypted_all_the_same() {
    for options in ["", "sslmode=prefer", "sslmode=require"] {
        let store = server().open("127.0.0.1", options).unwrap();
        block_on(store.summary(&super::postgres::ana(), &"s".parse().unwrap())).unwrap_err();
        let encrypted = server().encrypted();
        let (ours, all) = encrypted.split_once('|').unwrap();
        assert!(ours == all && all != "0", "{options}: {encrypted}");
    }
}

#[test]
fn a_server_that_proves_its_name_by_the_right_ca_is_taken() {
    server().open("localhost", "sslmode=verify-full&sslrootcert=DIR/ca.pem").unwrap();
    server().open("localhost", "sslmode=verify-ca&sslrootcert=DIR/ca.pem").unwrap();
    server().open("127.0.0.1", "sslmode=verify-ca&sslrootcert=DIR/ca.pem").unwrap();
    server().open("127.0.0.1", "sslmode=require&sslrootcert=DIR/ca.pem").unwrap();
}

#[test]
fn a_certificate_of_another_ca_is_refused_at_once() {
    for mode in ["verify-full", "verify-ca", "require"] {
        let began = std::time::Instant::now();
        let error = refusal("localhost", &format!("sslmode={mode}&sslrootcert=DIR/other.pem"));
        assert_eq!(error.code(), "store.untrusted", "{mode}: {error}");
        assert!(error.to_string().contains("localhost"), "{error}");
        assert!(began.elapsed().as_secs() < 10, "it is not tried again");
    }
    let error = refusal("localhost", "sslmode=verify-full");
    assert_eq!(error.code(), "store.untrusted", "the machine's CAs did not sign it: {error}");
}

#[test]
fn a_certificate_for_another_name_is_refused_and_the_name_is_said() {
    let error = refusal("127.0.0.1", "sslmode=verify-full&sslrootcert=DIR/ca.pem");
    assert_eq!(error.code(), "store.untrusted", "{error}");
    assert!(error.to_string().contains("localhost"), "{error}");
}

#[test]
fn a_plain_connection_to_a_server_that_takes_none_is_refused_with_its_words() {
    let error = refusal("127.0.0.1", "sslmode=disable");
    assert!(error.to_string().contains("no encryption"), "{error}");
}

#[test]
fn a_ca_that_cannot_be_read_is_said_before_anything_is_tried() {
    for file in ["missing", "empty"] {
        let error = refusal("localhost", &format!("sslmode=verify-full&sslrootcert=DIR/{file}.pem"));
        assert_eq!(error.code(), "input.invalid", "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn a_server_without_tls_is_refused_by_whoever_requires_it() {
    let plain = sapwood_store::conformance::cluster::shared();
    let url = format!("{}?sslmode=require", plain.new_database());
    let error = PgStore::open(&url).err().unwrap();
    assert!(error.to_string().contains("does not support TLS"), "{error}");
}
