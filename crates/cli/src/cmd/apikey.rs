//! `sapwood key` and `sapwood tenant`: who may come in through the server's door.

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

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// Make, list and revoke API keys
#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Debug, Subcommand)]
enum KeyVerb {
    /// Make a key; it is shown once
    New {
        /// Whom the key lets in
        #[arg(long)]
        user: String,
        /// What it is for, to tell it from others
        #[arg(long)]
        label: Option<String>,
        /// What it may be used for
        #[arg(long = "scope", value_enum, value_delimiter = ',', default_values_t = [Scopes::Read, Scopes::Write])]
        scopes: Vec<Scopes>,
        /// After how many days it ends
        #[arg(long, value_name = "DAYS")]
        expires_in: Option<u32>,
    },
    /// List keys, without their secrets
    Ls,
    /// End a key for good
    Revoke { id: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scopes {
    /// Read and follow what the user may see
    Read,
    /// Change it, as far as the user may
    Write,
    /// See and change every session of the tenant
    Operate,
}

impl Scopes {
    fn grant(self) -> Grant {
        match self {
            Scopes::Read => Grant::Read,
            Scopes::Write => Grant::Write,
            Scopes::Operate => Grant::Operate,
        }
    }
}

pub async fn run(app: &mut App, args: KeyArgs) -> Result<()> {
    match args.verb {
        KeyVerb::New { user, label, scopes, expires_in } => {
            let now = SystemClock.now();
            let expires_at = expires_in.map(|days| TimestampMs(now.0 + i64::from(days) * DAY_MS));
            let grants = scopes.into_iter().map(Scopes::grant).collect();
            make(app, &user, label, grants, expires_at).await
        }
        KeyVerb::Ls => list(app).await,
        KeyVerb::Revoke { id } => {
            let key = app.engine.store().revoke_key(&app.scope, &id, SystemClock.now()).await?;
            if app.out.is_json() {
                return app.out.json(&shown(&key));
            }
            Ok(writeln!(app.out, "{} is revoked", key.id)?)
        }
    }
}

async fn make(
    app: &mut App,
    user: &str,
    label: Option<String>,
    grants: Vec<Grant>,
    expires_at: Option<TimestampMs>,
) -> Result<()> {
    let no_chance = || Failure::new("key.missing", "the system gives no random numbers");
    let (id, secret) = new_key().ok_or_else(no_chance)?;
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
    note(app.format(), &format!("{id}: this is shown once; only its hash is kept"));
    Ok(())
}

async fn list(app: &mut App) -> Result<()> {
    let keys = app.engine.store().list_keys(&app.scope).await?;
    if app.out.is_json() {
        return keys.iter().try_for_each(|key| app.out.json(&shown(key)));
    }
    let rows = keys.iter().map(row).collect();
    let head = ["ID", "USER", "SCOPES", "LABEL", "CREATED", "ENDS"];
    Table { head: &head, rows, flexible: 3 }.print(&mut app.out)
}

/// Everything but the hash.
fn shown(key: &ApiKey) -> serde_json::Value {
    let mut shown = serde_json::to_value(key).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("hash");
    }
    shown
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

/// Make and list tenants
#[derive(Debug, Args)]
pub struct TenantArgs {
    #[command(subcommand)]
    verb: TenantVerb,
}

#[derive(Debug, Subcommand)]
enum TenantVerb {
    /// Make a tenant known
    New { name: String },
    /// List the tenants of this store
    Ls,
}

pub async fn tenant(app: &mut App, args: TenantArgs) -> Result<()> {
    if app.scope.reach != Reach::Tenant {
        return Err(Failure::usage("tenants are the operator's business", "leave --as out"));
    }
    match args.verb {
        TenantVerb::New { name } => {
            let tenant = name.parse().map_err(sapwood::Error::from)?;
            let scope = Scope::operator(tenant, app.scope.principal.clone());
            app.engine.store().put_tenant(&scope, SystemClock.now()).await?;
            if app.out.is_json() {
                return app.out.json(&json!({ "tenant": scope.tenant }));
            }
            Ok(writeln!(app.out, "{}", scope.tenant)?)
        }
        TenantVerb::Ls => {
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
