//! `sapwood share` and `sapwood members`: the members of a session and their roles.

use std::io::Write;

use clap::{Args, ValueEnum};
use sapwood::Principal;
use sapwood::core::Role;
use serde_json::json;

use super::print_change;
use crate::app::App;
use crate::failure::Result;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleArg {
    /// Read and follow
    Reader,
    /// Also send, branch and call tools
    Collaborator,
    /// No access
    None,
}

/// Grant or revoke a user's access to a session
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood share @last bob --role reader
  sapwood share @last agent:reviewer --role collaborator
  sapwood share @last bob --role none")]
pub struct ShareArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// User name, or agent:NAME
    user: String,
    /// Role of the user in the session
    #[arg(long, value_enum)]
    role: RoleArg,
}

pub async fn run(app: &mut App, args: ShareArgs) -> Result<()> {
    let member = member(&args.user)?;
    let session = app.session(&args.session).await?;
    let role = match args.role {
        RoleArg::Reader => Some(Role::Reader),
        RoleArg::Collaborator => Some(Role::Collaborator),
        RoleArg::None => None,
    };
    let text = match role {
        Some(role) => format!("{member} is now a {} of {session}", role_name(role)),
        None => format!("{session} is no longer shared with {member}"),
    };
    let appended = app.engine.sessions().share(&app.scope, &session, member, role).await?;
    print_change(app, &appended, &text)
}

/// Parses a member. A name without a `user:` or `agent:` prefix is a user.
pub fn member(given: &str) -> Result<Principal> {
    let parsed = match given.split_once(':') {
        Some(("user" | "agent", _)) => given.parse(),
        _ => given.parse().map(Principal::User),
    };
    Ok(parsed.map_err(sapwood::Error::from)?)
}

pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Collaborator => "collaborator",
        Role::Owner => "owner",
    }
}

/// List a session's members and their roles
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood members @last")]
pub struct MembersArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn members(app: &mut App, args: MembersArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let summary = app.engine.directory().summary(&app.scope, &session).await?;
    let owner = std::iter::once((&summary.owner, &Role::Owner));
    for (member, role) in owner.chain(&summary.members) {
        if app.out.is_json() {
            app.out.json(&json!({ "member": member, "role": role }))?;
        } else {
            writeln!(app.out, "{member}  {}", role_name(*role))?;
        }
    }
    Ok(())
}
