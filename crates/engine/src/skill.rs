//! The active skills of a session. The list is a setting of the active path: activating a skill appends an entry,
//! and branching to before that entry undoes the activation. A skill's content is read from its folder on use.

use sapwood_core::entry::{Body, SkillsChanged};
use sapwood_core::port::skill::{SKILLS_ACTIVE_MAX, SkillCard, SkillError, SkillListing};
use sapwood_core::port::store::{Appended, StoreError};
use sapwood_core::project::summary::Summary;
use sapwood_core::{Right, Scope, SessionId};

use crate::{Result, service};

/// Whether to activate or deactivate a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

service! {
    /// The active skills of a session.
    pub struct Skills;
    skills
}

impl Skills<'_> {
    /// List all available skills.
    pub async fn list(self) -> SkillListing {
        match &self.engine.config.skills {
            Some(skills) => skills.list().await,
            None => SkillListing::default(),
        }
    }

    /// The names of a session's active skills.
    pub async fn active(self, scope: &Scope, session: &SessionId) -> Result<Vec<String>> {
        Ok(self.engine.configuration().settings(scope, session).await?.skills.unwrap_or_default())
    }

    /// Replace the list of active skills.
    pub async fn set(self, scope: &Scope, session: &SessionId, wanted: Vec<String>) -> Result<Appended> {
        self.change(scope, session, |_| wanted.clone()).await
    }

    /// Activate or deactivate one skill.
    pub async fn switch(
        self,
        scope: &Scope,
        session: &SessionId,
        name: &str,
        switch: Switch,
    ) -> Result<Appended> {
        self.change(scope, session, |mut active| {
            active.retain(|other| other != name);
            active.extend((switch == Switch::On).then(|| name.to_owned()));
            active
        })
        .await
    }

    async fn change(
        self,
        scope: &Scope,
        session: &SessionId,
        change: impl Fn(Vec<String>) -> Vec<String>,
    ) -> Result<Appended> {
        let listing = self.list().await;
        self.engine
            .log()
            .decide(scope, session, "skills", |engine, summary| {
                let (change, listing) = (&change, &listing);
                async move {
                    // Check access here: the store only checks appends, and an unchanged list appends nothing.
                    check_may_write(scope, &summary)?;
                    let settings = engine.configuration().settings(scope, session).await?;
                    let before = settings.skills.unwrap_or_default();
                    let active = validated(change(before.clone()), &before, listing)?;
                    let is_unchanged = active == before;
                    Ok((!is_unchanged)
                        .then_some(Body::SkillsChanged(SkillsChanged { active }))
                        .into_iter()
                        .collect())
                }
            })
            .await
    }

    /// The cards shown to the model for active skills that are available.
    pub(crate) async fn cards_of(self, session: &SessionId, active: &[String]) -> Vec<SkillCard> {
        if active.is_empty() || self.engine.config.skills.is_none() {
            return Vec::new();
        }
        let listing = self.list().await;
        let found = active.iter().take(SKILLS_ACTIVE_MAX).filter_map(|name| {
            let card = listing.card(name).cloned();
            if card.is_none() {
                tracing::warn!(%session, skill = %name, "an active skill is not available");
            }
            card
        });
        found.collect()
    }
}

fn check_may_write(scope: &Scope, summary: &Summary) -> Result<(), StoreError> {
    match scope.role_in(&summary.owner, &summary.members) {
        Some(role) if role.allows(Right::Write) => Ok(()),
        _ => Err(StoreError::Denied {
            session: summary.id.clone(),
            principal: scope.principal.clone(),
            needed: Right::Write,
        }),
    }
}

/// Deduplicate the names. A newly activated skill must be available; a skill that was already active may be
/// missing.
fn validated(
    wanted: Vec<String>,
    before: &[String],
    listing: &SkillListing,
) -> Result<Vec<String>, SkillError> {
    let mut active: Vec<String> = Vec::new();
    for name in wanted {
        if listing.card(&name).is_none() && !before.contains(&name) {
            return Err(SkillError::Unknown { name });
        }
        if !active.contains(&name) {
            active.push(name);
        }
    }
    if active.len() > SKILLS_ACTIVE_MAX {
        return Err(SkillError::TooMany { limit: SKILLS_ACTIVE_MAX });
    }
    Ok(active)
}
