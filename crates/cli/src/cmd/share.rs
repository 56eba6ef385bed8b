//! `sapwood share` and `sapwood members`: who may do what with a session.

use std::io::Write;

use clap::{Args, ValueEnum};
use sapwood::Principal;
use sapwood::core::Role;
use serde_json::json;

use super::print_change;
use crate::app::App;
use crate::failure::Result;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Grant {
    /// May read and follow
    Reader,
    /// May also send, branch and call tools
    Collaborator,
    /// May nothing any more
    None,
}

/// Give somebody a role in a session, or take it away
#[derive(Debug, Args)]
pub struct ShareArgs {
    session: String,
    /// A user's name, or agent:NAME
    user: String,
    #[arg(long, value_enum)]
    role: Grant,
}

pub async fn run(app: &mut App, args: ShareArgs) -> Result<()> {
    let member = member(&args.user)?;
    let session = app.session(&args.session).await?;
    let role = match args.role {
        Grant::Reader => Some(Role::Reader),
        Grant::Collaborator => Some(Role::Collaborator),
        Grant::None => None,
    };
    let text = match role {
        Some(role) => format!("{member} is now {} of {session}", role_name(role)),
        None => format!("{session} is no longer shared with {member}"),
    };
    let appended = app.engine.share(&app.scope, &session, member, role).await?;
    print_change(app, &appended, &text)
}

/// People are named without a prefix; whoever writes one means it.
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

/// Show who may do what with a session
#[derive(Debug, Args)]
pub struct MembersArgs {
    session: String,
}

pub async fn members(app: &mut App, args: MembersArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let summary = app.engine.summary(&app.scope, &session).await?;
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
