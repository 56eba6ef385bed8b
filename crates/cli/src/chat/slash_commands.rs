//! Runs slash commands. Most of them run a `sapwood` command with the current session.

use std::io::Write;

use clap::Parser;
use sapwood::core::Kind;
use sapwood::core::content::joined_text;
use sapwood::core::entry::Body;
use sapwood::{ForkAt, OpenOptions, SessionId};

use super::command::{self, SlashCommand};
use super::{Chat, pick_session, status};
use crate::args::Cli;
use crate::failure::{Failure, Result};
use crate::render::{BOLD, DIM, GREEN, clean};

/// Maximum number of models listed.
const MODELS_SHOWN_MAX: usize = 30;

impl Chat<'_> {
    pub(super) async fn run_slash_command(&mut self, command: SlashCommand) -> Result<()> {
        match command {
            SlashCommand::Help => self.show_help(),
            SlashCommand::Quit => Ok(()),
            SlashCommand::Undo => self.undo().await,
            SlashCommand::Fork { at } => self.fork(at).await,
            SlashCommand::New { agent } => self.start_new_session(agent).await,
            SlashCommand::Agent { name: None } => self.show_agent().await,
            SlashCommand::Agent { name } => self.start_new_session(name).await,
            SlashCommand::Model { name: None } => self.show_models().await,
            SlashCommand::Model { name: Some(name) } => self.change_model(&name).await,
            SlashCommand::Export { file } => self.export(file).await,
            SlashCommand::Skill { args } => self.skill(&args).await,
            SlashCommand::Sessions => self.run_command(&["ls", "--limit", "10"]).await,
            SlashCommand::Open { session } => {
                let session = self.app.session_to_read(&session).await?;
                self.print_line(format!("{DIM}session {session}{DIM:#}"))?;
                self.open_session(session).await
            }
            SlashCommand::Run { args } => {
                let session = self.current_session()?.to_string();
                let (name, rest) = args.split_first().ok_or_else(no_session)?;
                let rest = rest.iter().map(String::as_str);
                let words: Vec<&str> = [name.as_str(), &session].into_iter().chain(rest).collect();
                self.run_command(&words).await
            }
        }
    }

    /// The current session. Fails before the first message, which creates the session.
    fn current_session(&self) -> Result<SessionId> {
        self.session.clone().ok_or_else(no_session)
    }

    fn show_help(&mut self) -> Result<()> {
        let rows = command::help();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut lines: Vec<String> = rows
            .iter()
            .map(|(name, about)| format!("  {BOLD}{name:width$}{BOLD:#}  {DIM}{about}{DIM:#}"))
            .collect();
        lines.push(String::new());
        let more = [
            "Alt-Enter, or \\ at the end, starts a new line; pasted text keeps its line breaks.",
            "While a turn runs, a line that you type is sent to it; Ctrl-C cancels the turn.",
            "More commands: /show /context /feed /ledger /info /label /rename /trim /uncompact …",
        ];
        lines.extend(more.map(|line| format!("{DIM}{line}{DIM:#}")));
        self.screen.print(&lines)
    }

    /// Run a `sapwood` command as if typed in a shell.
    async fn run_command(&mut self, words: &[&str]) -> Result<()> {
        let words = std::iter::once("sapwood").chain(words.iter().copied());
        let cli = Cli::try_parse_from(words).map_err(|error| crate::args::usage_failure(&error))?;
        Box::pin(crate::dispatch::dispatch(self.app, cli.command)).await?;
        Ok(self.app.out.flush()?)
    }

    /// Move the leaf to the entry before the last user message, and put the message's text in the prompt.
    async fn undo(&mut self) -> Result<()> {
        let session = self.current_session()?;
        let path = self.app.engine.views().path(&self.app.scope, &session, None).await?;
        let last_message = path.iter().rposition(|entry| entry.meta.kind == Kind::UserMessage);
        let at =
            last_message.ok_or_else(|| Failure::usage("there is nothing to undo", "send a message first"))?;
        match at.checked_sub(1).map(|before| path[before].meta.id) {
            Some(before) => self.app.engine.edits().branch(&self.app.scope, &session, before, None).await?,
            None => self.app.engine.edits().reset(&self.app.scope, &session).await?,
        };
        if let Body::UserMessage(message) = &path[at].body {
            self.typed = joined_text(&message.parts);
        }
        self.print_line(format!(
            "{DIM}went back to before your last message; /tree shows the branch you left{DIM:#}"
        ))
    }

    async fn fork(&mut self, at: Option<String>) -> Result<()> {
        let source = self.current_session()?;
        let at = match at {
            Some(at) => ForkAt::Entry(
                self.app.engine.directory().find_entry(&self.app.scope, &source, &at).await?.meta.seq,
            ),
            None => ForkAt::Leaf,
        };
        let fork =
            self.app.engine.sessions().fork(&self.app.scope, &source, at, OpenOptions::default()).await?;
        self.session = Some(fork.clone());
        self.print_line(format!("{GREEN}✓{GREEN:#} now in session {fork}  {DIM}forked from {source}{DIM:#}"))
    }

    async fn start_new_session(&mut self, agent: Option<String>) -> Result<()> {
        if agent.is_some() || self.session.is_some() {
            let config = &self.app.paths.config;
            self.template.agent = self.app.paths.agents().choose(agent.as_deref(), config)?;
        }
        if let Some(left) = self.session.take() {
            self.print_line(format!("{DIM}left session {left}{DIM:#}"))?;
        }
        self.allowed_tools.clear();
        self.print_header().await
    }

    async fn show_agent(&mut self) -> Result<()> {
        let agent = match &self.session {
            Some(session) => self.app.engine.configuration().agent_of(&self.app.scope, session).await?,
            None => self.template.agent.clone(),
        };
        let tools = if agent.tools.is_empty() { "none".to_owned() } else { agent.tools.join(", ") };
        self.screen.print(&[
            format!("{BOLD}{}{BOLD:#}  {DIM}frozen when the session started{DIM:#}", clean(&agent.id)),
            format!("  {DIM}tools{DIM:#} {}", clean(&tools)),
        ])
    }

    async fn show_models(&mut self) -> Result<()> {
        let now = match &self.session {
            Some(session) => status::model_of(self.app, session).await?,
            None => self.template.agent.model.clone().unwrap_or_else(|| self.app.default_model()),
        };
        let names = self.app.model.as_ref().map(|models| models.names()).unwrap_or_default();
        let mut lines = vec![format!("{BOLD}{}{BOLD:#}", clean(&now))];
        let others = names.iter().filter(|name| **name != now).take(MODELS_SHOWN_MAX);
        lines.extend(others.map(|name| format!("  {DIM}{}{DIM:#}", clean(name))));
        self.screen.print(&lines)
    }

    async fn change_model(&mut self, name: &str) -> Result<()> {
        let name = match self.session.clone() {
            Some(session) => pick_session::change_model(self.app, &session, name).await?,
            None => self.app.engine.configuration().callable_model(name)?,
        };
        self.template.agent.model = Some(name.clone());
        self.print_line(format!("{GREEN}✓{GREEN:#} now using {}", clean(&name)))
    }

    async fn skill(&mut self, words: &[String]) -> Result<()> {
        let session = self.session.as_ref().map(ToString::to_string);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (words.as_slice(), session.as_deref()) {
            ([], None) => self.run_command(&["skill", "ls"]).await,
            ([], Some(session)) => self.run_command(&["skill", "ls", "--session", session]).await,
            ([switch @ ("on" | "off"), name], Some(session)) => {
                self.run_command(&["skill", switch, session, name]).await
            }
            (["on" | "off", _], None) => Err(no_session()),
            _ => Err(Failure::usage(
                "/skill expects `on NAME` or `off NAME`",
                "type /skill to list the skills",
            )),
        }
    }

    async fn export(&mut self, file: Option<String>) -> Result<()> {
        let session = self.current_session()?.to_string();
        let file = file.unwrap_or_else(|| format!("{session}.jsonl"));
        self.run_command(&["export", &session, "-o", &file]).await
    }
}

fn no_session() -> Failure {
    Failure::usage("there is no session yet", "send a message to start one")
}
