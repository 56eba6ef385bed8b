//! TLS connections to the database: `sslmode` and `sslrootcert` in a URL, and the streams. The
//! modes have the same meaning as in PostgreSQL's own programs: `prefer` (the default) encrypts if
//! the server supports TLS, and `require` always encrypts, both without verification. `verify-ca`,
//! and `require` with `sslrootcert`, require a certificate of the CA in `sslrootcert`. `verify-full`
//! also checks the host name.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Rustls;

use super::cert_verifier::{AnyCertificate, AnyName};

/// How a server's certificate is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CertCheck {
    Nothing,
    Issuer,
    IssuerAndName,
}

/// The TLS settings in a URL that the client library does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsSettings {
    cert_check: CertCheck,
    /// The file with the trusted CAs, or `None` for the system's CAs, which SSL_CERT_FILE overrides.
    roots: Option<PathBuf>,
}

impl TlsSettings {
    /// Parses the settings in a URL. Also returns the URL to pass to the client library.
    pub fn parse_url(url: &str) -> Result<(String, Self), String> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots) = ("prefer", None);
        let mut rest: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = value,
                Some(("sslrootcert", value)) => roots = Some(value).filter(|value| *value != "system"),
                _ => rest.push(pair),
            }
        }
        let (client_mode, cert_check) = match (mode, roots) {
            ("disable" | "prefer", None) => (mode, CertCheck::Nothing),
            ("disable" | "prefer", Some(_)) => {
                return Err(format!(
                    "sslrootcert has no effect with sslmode={mode}: use sslmode=verify-full"
                ));
            }
            ("require", None) => ("require", CertCheck::Nothing),
            ("require" | "verify-ca", Some(_)) => ("require", CertCheck::Issuer),
            ("verify-ca", None) => {
                let why = "sslmode=verify-ca without sslrootcert=FILE would accept any certificate";
                return Err(format!("{why}: set sslrootcert to your CA, or use sslmode=verify-full"));
            }
            ("verify-full", _) => ("require", CertCheck::IssuerAndName),
            (other, _) => {
                return Err(format!(
                    "unknown sslmode={other}: use disable, prefer, require, verify-ca or verify-full"
                ));
            }
        };
        let mut client_url = format!("{address}?sslmode={client_mode}");
        for pair in rest {
            let _ = write!(client_url, "&{pair}");
        }
        let roots = roots.map(|path| PathBuf::from(percent_decoded(path)));
        Ok((client_url, Self { cert_check, roots }))
    }

    fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, String> {
        let provider = Arc::new(default_provider());
        let failed = |error: &dyn std::fmt::Display| format!("failed to set up TLS: {error}");
        let checked: Arc<dyn ServerCertVerifier> = match (&self.roots, self.cert_check) {
            (_, CertCheck::Nothing) => return Ok(Arc::new(AnyCertificate(provider))),
            (Some(path), _) => {
                let roots = Arc::new(read_roots(path)?);
                WebPkiServerVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|error| failed(&error))?
            }
            (None, _) => Arc::new(Verifier::new(provider).map_err(|error| failed(&error))?),
        };
        Ok(if self.cert_check == CertCheck::Issuer { Arc::new(AnyName(checked)) } else { checked })
    }
}

fn read_roots(path: &PathBuf) -> Result<RootCertStore, String> {
    let unread = |why: String| format!("failed to load sslrootcert={}: {why}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unread(error.to_string()))? {
        let certificate = certificate.map_err(|error| unread(error.to_string()))?;
        roots.add(certificate).map_err(|error| unread(error.to_string()))?;
    }
    if roots.is_empty() { Err(unread("it contains no certificate".to_owned())) } else { Ok(roots) }
}

/// Decodes percent escapes such as `%2F`. Invalid sequences are kept.
fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    pub fn new(settings: &TlsSettings) -> Result<Self, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("failed to set up TLS: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(settings.verifier()?)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = EncryptedStream<S>;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, Self::Error> {
        let name = ServerName::try_from(domain.to_owned())?;
        Ok(Handshake { connector: TlsConnector::from(self.0.clone()), name })
    }
}

pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = EncryptedStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<EncryptedStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { Ok(EncryptedStream(self.connector.connect(self.name, stream).await?)) })
    }
}

pub(super) struct EncryptedStream<S>(Rustls<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for EncryptedStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for EncryptedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for EncryptedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> (String, CertCheck, Option<PathBuf>) {
        let (client_url, settings) = TlsSettings::parse_url(url).unwrap();
        (client_url, settings.cert_check, settings.roots)
    }

    #[test]
    fn each_sslmode_sets_its_verification_and_keeps_the_rest_of_the_url() {
        let ca = Some(PathBuf::from("/etc/my ca.pem"));
        assert_eq!(
            settings("postgres://a/b"),
            ("postgres://a/b?sslmode=prefer".into(), CertCheck::Nothing, None)
        );
        let client_url = "postgres://a,c/b?sslmode=require&target_session_attrs=read-write".to_owned();
        let full = "postgres://a,c/b?sslmode=verify-full&target_session_attrs=read-write";
        assert_eq!(settings(full), (client_url, CertCheck::IssuerAndName, None));
        let required = "postgres://a/b?sslmode=require".to_owned();
        assert_eq!(settings("postgres://a/b?sslmode=require"), (required.clone(), CertCheck::Nothing, None));
        for mode in ["require", "verify-ca"] {
            let url = format!("postgres://a/b?sslmode={mode}&sslrootcert=/etc/my%20ca.pem");
            assert_eq!(settings(&url), (required.clone(), CertCheck::Issuer, ca.clone()), "{mode}");
        }
        let url = "postgres://a/b?sslrootcert=system&sslmode=verify-full";
        assert_eq!(settings(url), (required, CertCheck::IssuerAndName, None));
    }

    #[test]
    fn settings_that_verify_less_than_they_suggest_are_rejected() {
        for query in
            ["sslmode=verify-ca", "sslrootcert=/ca.pem", "sslmode=disable&sslrootcert=/ca.pem", "sslmode=on"]
        {
            assert!(TlsSettings::parse_url(&format!("postgres://a/b?{query}")).is_err(), "{query}");
        }
    }

    #[test]
    fn a_percent_sign_without_an_escape_is_kept() {
        assert_eq!(percent_decoded("100%/a%2Fb%zz%4"), "100%/a/b%zz%4");
    }
}
