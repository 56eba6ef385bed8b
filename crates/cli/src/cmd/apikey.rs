//! `sapwood key` and `sapwood tenant`: the server's API keys and tenants.

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use sapwood::core::port::clock::Clock;
use sapwood::core::port::keys::{ApiKey, Grant};
use sapwood::core::scope::Reach;
use sapwood::core::{BlobHash, TimestampMs};
use sapwood::{Scope, SystemClock};
use sapwood_server::auth::new_key;
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::render::{Table, local_time, note};

/// Milliseconds per day.
const DAY_MS: i64 = 86_400_000;

/// Create, list and revoke API keys
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood key new --user alice
  sapwood key ls")]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key and print it once
    #[command(after_help = "\
Examples:
  sapwood key new --user alice --label laptop
  sapwood key new --user monitor --scope read --expires-in 30")]
    New {
        /// User that the key authenticates
        #[arg(long)]
        user: String,
        /// Label that describes the key
        #[arg(long)]
        label: Option<String>,
        /// Scopes of the key, comma-separated
        #[arg(long = "scope", value_enum, value_delimiter = ',', default_values_t = [ScopeArg::Read, ScopeArg::Write])]
        scopes: Vec<ScopeArg>,
        /// Days until the key expires; default: never
        #[arg(long, value_name = "DAYS")]
        expires_in: Option<u32>,
    },
    /// List keys, without their secrets
    #[command(after_help = "\
Examples:
  sapwood key ls")]
    Ls,
    /// Revoke a key permanently
    #[command(after_help = "\
Examples:
  sapwood key revoke KEY_ID")]
    Revoke {
        /// Key id, as shown by `sapwood key ls`
        id: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScopeArg {
    /// Read and follow the sessions that the user can access
    Read,
    /// Write to the sessions that the user can write to
    Write,
    /// Read and write every session of the tenant
    Operate,
}

impl ScopeArg {
    fn grant(self) -> Grant {
        match self {
            ScopeArg::Read => Grant::Read,
            ScopeArg::Write => Grant::Write,
            ScopeArg::Operate => Grant::Operate,
        }
    }
}

pub async fn run(app: &mut App, args: KeyArgs) -> Result<()> {
    match args.command {
        KeyCommand::New { user, label, scopes, expires_in } => {
            let now = SystemClock.now();
            let expires_at = expires_in.map(|days| TimestampMs(now.0 + i64::from(days) * DAY_MS));
            let grants = scopes.into_iter().map(ScopeArg::grant).collect();
            create(app, &user, label, grants, expires_at).await
        }
        KeyCommand::Ls => list(app).await,
        KeyCommand::Revoke { id } => {
            let key = app.engine.store().revoke_key(&app.scope, &id, SystemClock.now()).await?;
            if app.out.is_json() {
                return app.out.json(&without_hash(&key));
            }
            Ok(writeln!(app.out, "revoked key {}", key.id)?)
        }
    }
}

async fn create(
    app: &mut App,
    user: &str,
    label: Option<String>,
    grants: Vec<Grant>,
    expires_at: Option<TimestampMs>,
) -> Result<()> {
    let no_randomness =
        || Failure::new("key.missing", "failed to generate a key: the system provides no random numbers");
    let (id, secret) = new_key().ok_or_else(no_randomness)?;
    let key = ApiKey {
        id: id.clone(),
        tenant: app.scope.tenant.clone(),
        user: user.parse().map_err(sapwood::Error::from)?,
        hash: BlobHash::of(secret.as_bytes()),
        label,
        grants,
        created_at: SystemClock.now(),
        expires_at,
        revoked_at: None,
    };
    app.engine.store().put_key(&app.scope, key).await?;
    if app.out.is_json() {
        return app.out.json(&json!({ "key": secret, "id": id }));
    }
    writeln!(app.out, "{secret}")?;
    note(
        app.format(),
        &format!("{id}: save this key now; it is shown only once, and the store keeps only its hash"),
    );
    Ok(())
}

async fn list(app: &mut App) -> Result<()> {
    let keys = app.engine.store().list_keys(&app.scope).await?;
    if app.out.is_json() {
        return keys.iter().try_for_each(|key| app.out.json(&without_hash(key)));
    }
    let rows = keys.iter().map(row).collect();
    let head = ["ID", "USER", "SCOPES", "LABEL", "CREATED", "ENDS"];
    Table { head: &head, rows, flexible: 3 }.print(&mut app.out)
}

/// The key without its hash.
fn without_hash(key: &ApiKey) -> serde_json::Value {
    let mut without_hash = serde_json::to_value(key).unwrap_or_default();
    if let Some(fields) = without_hash.as_object_mut() {
        fields.remove("hash");
    }
    without_hash
}

fn row(key: &ApiKey) -> Vec<String> {
    let grants: Vec<String> = key.grants.iter().filter_map(|grant| name_of(*grant)).collect();
    let ends = match (key.revoked_at, key.expires_at) {
        (Some(at), _) => format!("revoked {}", local_time(at.0)),
        (None, Some(at)) => local_time(at.0),
        (None, None) => "-".to_owned(),
    };
    let label = key.label.clone().unwrap_or_else(|| "-".to_owned());
    vec![key.id.clone(), key.user.to_string(), grants.join(","), label, local_time(key.created_at.0), ends]
}

fn name_of(grant: Grant) -> Option<String> {
    serde_json::to_value(grant).ok()?.as_str().map(str::to_owned)
}

/// Create and list tenants
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood tenant new acme
  sapwood tenant ls")]
pub struct TenantArgs {
    #[command(subcommand)]
    command: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Create a tenant
    #[command(after_help = "\
Examples:
  sapwood tenant new acme")]
    New {
        /// Tenant name
        name: String,
    },
    /// List the tenants of this store
    #[command(after_help = "\
Examples:
  sapwood tenant ls")]
    Ls,
}

pub async fn tenant(app: &mut App, args: TenantArgs) -> Result<()> {
    if app.scope.reach != Reach::Tenant {
        return Err(Failure::usage("only the operator can manage tenants", "omit --as"));
    }
    match args.command {
        TenantCommand::New { name } => {
            let tenant = name.parse().map_err(sapwood::Error::from)?;
            let scope = Scope::operator(tenant, app.scope.principal.clone());
            app.engine.store().put_tenant(&scope, SystemClock.now()).await?;
            if app.out.is_json() {
                return app.out.json(&json!({ "tenant": scope.tenant }));
            }
            Ok(writeln!(app.out, "{}", scope.tenant)?)
        }
        TenantCommand::Ls => {
            for tenant in app.engine.store().list_tenants().await? {
                if app.out.is_json() {
                    app.out.json(&json!({ "tenant": tenant }))?;
                } else {
                    writeln!(app.out, "{tenant}")?;
                }
            }
            Ok(())
        }
    }
}
