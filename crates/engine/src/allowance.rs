//! Allowances: the models that a user or a tenant may call, and how many tokens and dollars per day (UTC). They are checked
//! before a request is sent. What was spent is counted in the store, so that it survives restarts and is shared by servers.
//! Calls that run at the same time are each checked alone.

use sapwood_core::agent::ChainLink;
use sapwood_core::id::UserName;
use sapwood_core::port::model::ModelError;
use sapwood_core::port::records::{RecordKind, Spent};
use sapwood_core::port::store::{AuditAction, AuditNote, StoreError};
use sapwood_core::scope::Reach;
use sapwood_core::{Principal, Scope, TimestampMs};
use serde::{Deserialize, Serialize};

use crate::{EngineError, Result, service};

const DAY_MS: i64 = 86_400_000;
/// Maximum number of models in an allowance.
const MODELS_MAX: usize = 100;
const TENANT: &str = "tenant";
const EVERY_USER: &str = "user:*";

/// Who has an allowance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowanceHolder {
    /// The tenant: the sum of all callers.
    Tenant,
    /// One user.
    User(UserName),
    /// Each user without an allowance of its own.
    EveryUser,
}

impl std::fmt::Display for AllowanceHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AllowanceHolder::Tenant => f.write_str(TENANT),
            AllowanceHolder::User(user) => write!(f, "user:{user}"),
            AllowanceHolder::EveryUser => f.write_str(EVERY_USER),
        }
    }
}

/// What a holder may use. An absent limit does not apply.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Allowance {
    /// Names of models, or prefixes that end in `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Cost per day, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_usd_per_day: Option<u64>,
    /// Tokens per day, input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
}

impl Allowance {
    fn allows(&self, model: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => model.starts_with(prefix),
            None => model == pattern,
        };
        self.models.as_ref().is_none_or(|models| models.iter().any(matches))
    }

    /// The limit that this spending would exceed, as text.
    fn exceeded_by(&self, spent: Spent) -> Option<String> {
        match (self.nano_usd_per_day, self.tokens_per_day) {
            (Some(max), _) if spent.nano_usd > max => Some(format!("${:.2} per day", max as f64 / 1e9)),
            (_, Some(max)) if spent.tokens > max => Some(format!("{max} tokens per day")),
            _ => None,
        }
    }
}

/// An allowance with its holder, and what the holder has spent today.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldAllowance {
    /// `tenant`, `user:NAME` or `user:*`.
    pub holder: String,
    /// The limits.
    #[serde(flatten)]
    pub allowance: Allowance,
    /// What the holder has spent today. For `user:*` always zero.
    pub spent: Spent,
}

service! {
    /// The models that callers may use, and how much per day.
    pub struct Allowances;
    allowances
}

impl Allowances<'_> {
    /// Set or remove an allowance.
    pub async fn set(
        self,
        scope: &Scope,
        holder: &AllowanceHolder,
        allowance: Option<Allowance>,
    ) -> Result<()> {
        if scope.reach != Reach::Tenant {
            return Err(EngineError::OperatorRequired { what: "change an allowance" });
        }
        let models = allowance.as_ref().and_then(|allowance| allowance.models.as_ref());
        if models.is_some_and(|models| models.len() > MODELS_MAX) {
            let why = format!("it names more than {MODELS_MAX} models");
            return Err(EngineError::Invalid { what: "the allowance", why });
        }
        let value = allowance.map(|allowance| serde_json::to_string(&allowance).expect("strings serialize"));
        let what = if value.is_some() { "set" } else { "removed" };
        let detail = Some(format!("allowance of {holder} {what}"));
        let note = AuditNote { action: AuditAction::TenantChange, session: None, detail };
        let (store, now) = (&self.engine.store, self.engine.clock.now());
        Ok(store.put_record(scope, RecordKind::Allowance, &holder.to_string(), value, note, now).await?)
    }

    /// The allowances of the tenant, with what was spent today.
    pub async fn list(self, scope: &Scope) -> Result<Vec<HeldAllowance>> {
        let mut held = Vec::new();
        for (holder, allowance) in self.records(scope).await? {
            let spent = self.engine.store.spent(scope, self.today(), &holder).await?;
            held.push(HeldAllowance { holder, allowance, spent });
        }
        Ok(held)
    }

    async fn records(self, scope: &Scope) -> Result<Vec<(String, Allowance)>> {
        let records = self.engine.store.list_records(scope, RecordKind::Allowance).await?;
        let mut allowances = Vec::with_capacity(records.len());
        for record in records {
            // An unreadable limit must not become no limit.
            let damaged = |error: serde_json::Error| StoreError::Damaged {
                place: format!("the allowance of {}", record.name),
                what: error.to_string(),
            };
            allowances.push((record.name.clone(), serde_json::from_str(&record.value).map_err(damaged)?));
        }
        Ok(allowances)
    }

    /// The allowances that apply to a caller, each with the name under which spending is counted.
    pub(crate) async fn applying_to(self, scope: &Scope) -> Result<Vec<(String, Allowance)>> {
        let records = self.records(scope).await?;
        let find =
            |name: &str| records.iter().find(|(holder, _)| holder == name).map(|(_, found)| found.clone());
        let mut applying: Vec<(String, Allowance)> = Vec::new();
        applying.extend(find(TENANT).map(|allowance| (TENANT.to_owned(), allowance)));
        if let Principal::User(user) = &scope.principal {
            let holder = AllowanceHolder::User(user.clone()).to_string();
            let allowance = find(&holder).or_else(|| find(EVERY_USER));
            applying.extend(allowance.map(|allowance| (holder, allowance)));
        }
        Ok(applying)
    }

    /// Check that a call is allowed whose cost is at most `estimate`.
    pub(crate) async fn check(
        self,
        scope: &Scope,
        applying: &[(String, Allowance)],
        model: &str,
        estimate: Spent,
    ) -> Result<Result<(), ModelError>> {
        for (holder, allowance) in applying {
            let (model, holder) = (model.to_owned(), holder.clone());
            if !allowance.allows(&model) {
                return Ok(Err(ModelError::Denied { model, holder }));
            }
            let spent = self.engine.store.spent(scope, self.today(), &holder).await?;
            if let Some(limit) = allowance.exceeded_by(spent.plus(estimate)) {
                return Ok(Err(ModelError::OverAllowance { model, holder, limit }));
            }
        }
        Ok(Ok(()))
    }

    /// Keep the models of a chain that the caller may call now. Fails with the reason for the first model if there is none.
    pub(crate) async fn allowed_links(
        self,
        scope: &Scope,
        links: Vec<ChainLink>,
    ) -> Result<Result<Vec<ChainLink>, ModelError>> {
        let applying = self.applying_to(scope).await?;
        let (mut allowed, mut refused) = (Vec::new(), None);
        // A call has at least one token, so that a used up allowance is noticed before anything is written.
        let least = Spent { tokens: 1, nano_usd: 1 };
        for link in links {
            match self.check(scope, &applying, &link.model, least).await? {
                Ok(()) => allowed.push(link),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Ok(match refused {
            Some(error) if allowed.is_empty() => Err(error),
            _ => Ok(allowed),
        })
    }

    /// Count what a call has cost.
    pub(crate) async fn account(self, scope: &Scope, holders: &[String], spent: Spent) {
        if let Err(error) = self.engine.store.add_spent(scope, self.today(), holders, spent).await {
            tracing::warn!(%error, "failed to count what a model call has cost");
        }
    }

    fn today(self) -> u32 {
        let TimestampMs(now) = self.engine.clock.now();
        u32::try_from(now / DAY_MS).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_exactly_or_by_a_prefix() {
        let allowance =
            Allowance { models: Some(vec!["demo".into(), "anthropic/*".into()]), ..Allowance::default() };
        for model in ["demo", "anthropic/", "anthropic/claude"] {
            assert!(allowance.allows(model), "{model}");
        }
        for model in ["demo2", "openai/gpt", "anthropic"] {
            assert!(!allowance.allows(model), "{model}");
        }
        assert!(Allowance::default().allows("any"));
        assert!(!Allowance { models: Some(Vec::new()), ..Allowance::default() }.allows("any"));
    }

    #[test]
    fn a_limit_is_exceeded_only_beyond_it() {
        let allowance = Allowance { tokens_per_day: Some(10), nano_usd_per_day: Some(5), models: None };
        assert_eq!(allowance.exceeded_by(Spent { tokens: 10, nano_usd: 5 }), None);
        assert!(allowance.exceeded_by(Spent { tokens: 11, nano_usd: 0 }).is_some());
        assert!(allowance.exceeded_by(Spent { tokens: 0, nano_usd: 6 }).is_some());
    }
}
