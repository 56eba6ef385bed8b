//! Property test: no memory reaches another user unless its owner shared it, and no memory reaches another
//! tenant. Random actions run on a store, and after each action every user reads everything visible to them.

use std::collections::HashMap;

use proptest::prelude::*;
use sapwood::core::Role;
use sapwood::core::port::memory::{MemoryFilter, Standing, Whose};
use sapwood::{Agent, Belongs, MemoryEdit, MemoryKind, Sapwood, Scope, SessionId, TenantId, user_text};

const USERS: [(&str, &str); 4] = [("acme", "ana"), ("acme", "bob"), ("acme", "carol"), ("globex", "ana")];

#[derive(Debug, Clone)]
enum Action {
    /// Mention a fact in one of the user's own sessions, old or new.
    Say {
        who: usize,
        session: usize,
    },
    Write {
        who: usize,
    },
    Share {
        who: usize,
        session: usize,
        with: usize,
    },
    /// Close a session that the user owns or is a member of.
    Close {
        who: usize,
        session: usize,
    },
    Archive {
        who: usize,
        session: usize,
    },
    Learn {
        who: usize,
        session: usize,
    },
    Promote {
        who: usize,
        nth: usize,
    },
    TakeBack {
        who: usize,
        nth: usize,
    },
    Erase {
        who: usize,
        session: usize,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let who = 0..USERS.len();
    let session = 0..3usize;
    let action = prop_oneof![
        4 => (who.clone(), session.clone()).prop_map(|(who, session)| Action::Say { who, session }),
        1 => who.clone().prop_map(|who| Action::Write { who }),
        2 => (who.clone(), session.clone(), who.clone()).prop_map(|(who, session, with)| Action::Share { who, session, with }),
        3 => (who.clone(), session.clone()).prop_map(|(who, session)| Action::Close { who, session }),
        1 => (who.clone(), session.clone()).prop_map(|(who, session)| Action::Archive { who, session }),
        2 => (who.clone(), session.clone()).prop_map(|(who, session)| Action::Learn { who, session }),
        1 => (who.clone(), 0..4usize).prop_map(|(who, nth)| Action::Promote { who, nth }),
        1 => (who.clone(), 0..4usize).prop_map(|(who, nth)| Action::TakeBack { who, nth }),
        1 => (who, session).prop_map(|(who, session)| Action::Erase { who, session }),
    ];
    prop::collection::vec(action, 1..40)
}

struct TestUsers {
    users: Vec<Sapwood>,
    sessions: HashMap<(usize, usize), SessionId>,
    /// The user who wrote canary number n, by index.
    authors: Vec<usize>,
}

impl TestUsers {
    fn new() -> Self {
        let operator = Sapwood::open("memory:").unwrap();
        let scope = |(tenant, user): (&str, &str)| {
            Scope::user(tenant.parse::<TenantId>().unwrap(), user.parse().unwrap())
        };
        let users = USERS.into_iter().map(|user| operator.with_scope(scope(user))).collect();
        Self { users, sessions: HashMap::new(), authors: Vec::new() }
    }

    fn canary(&mut self, who: usize) -> String {
        self.authors.push(who);
        format!("canary{}end", self.authors.len() - 1)
    }

    async fn session(&mut self, who: usize, nth: usize) -> SessionId {
        if let Some(session) = self.sessions.get(&(who, nth)) {
            return session.clone();
        }
        let new = self.users[who].open_session(Default::default()).await.unwrap();
        self.sessions.insert((who, nth), new.clone());
        new
    }

    /// Perform an action, which may be refused. The test checks only the content that users can read afterwards.
    async fn act(&mut self, action: Action) {
        match action {
            Action::Say { who, session } => {
                let session = self.session(who, session).await;
                let text = format!("Remember that the bird of today is {}.", self.canary(who));
                let _ = self.users[who].inject(&session, vec![user_text(text)]).await;
            }
            Action::Write { who } => {
                let text = format!("The fish is {}", self.canary(who));
                self.users[who].remember(text, MemoryKind::Fact).await.unwrap();
            }
            Action::Share { who, session, with } => {
                let session = self.session(who, session).await;
                let member = self.users[with].scope().principal.clone();
                let (engine, scope) = (self.users[who].engine(), self.users[who].scope());
                let _ = engine.sessions().share(scope, &session, member, Some(Role::Collaborator)).await;
            }
            Action::Close { who, session } => {
                for owner in 0..USERS.len() {
                    let session = self.session(owner, session).await;
                    let _ = self.users[who].close(&session).await;
                }
            }
            Action::Archive { who, session } => {
                let session = self.session(who, session).await;
                let _ = self.users[who].archive(&session).await;
            }
            Action::Learn { who, session } => {
                for owner in 0..USERS.len() {
                    let session = self.session(owner, session).await;
                    let _ = self.users[who].learn(&session).await;
                }
            }
            Action::Promote { who, nth } => self.set_owner(who, nth, Belongs::Tenant).await,
            Action::TakeBack { who, nth } => {
                let own = Belongs::To(self.users[who].scope().principal.clone());
                self.set_owner(who, nth, own).await;
            }
            Action::Erase { who, session } => {
                if let Some(session) = self.sessions.remove(&(who, session)) {
                    let (engine, scope) = (self.users[who].engine(), self.users[who].scope());
                    engine.sessions().erase(scope, &session).await.unwrap();
                }
            }
        }
    }

    async fn set_owner(&self, who: usize, nth: usize, belongs: Belongs) {
        let memories = self.users[who].memories().await.unwrap();
        if let Some(memory) = memories.get(nth) {
            let edit = MemoryEdit { belongs: Some(belongs), ..MemoryEdit::default() };
            let _ = self.users[who].edit_memory(memory.id, edit).await;
        }
    }

    /// All text that a user can read through every operation that returns memories.
    async fn visible_to(&self, who: usize) -> String {
        let user = &self.users[who];
        let (engine, scope) = (user.engine(), user.scope());
        let mut visible = String::new();
        for whose in
            [Whose::Any, Whose::For(self.users[0].scope().principal.clone()), Whose::Only(Belongs::Tenant)]
        {
            let filter = MemoryFilter { whose, standing: Standing::Any, ..MemoryFilter::default() };
            visible += &format!("{:?}", engine.memories().list(scope, &filter).await.unwrap());
        }
        visible +=
            &format!("{:?}", user.recollect("which bird is it today, and the fish?", 50).await.unwrap());
        let session = user.start(Agent::default()).await.unwrap();
        visible += &user.context(&session).await.unwrap().system.unwrap_or_default();
        engine.sessions().erase(scope, &session).await.unwrap();
        visible
    }

    /// Whether a canary is shared with the tenant now, as its author sees it.
    async fn is_shared_with_tenant(&self, canary: usize) -> bool {
        let owner = &self.users[self.authors[canary]];
        let filter = MemoryFilter {
            whose: Whose::Only(Belongs::Tenant),
            standing: Standing::Any,
            ..MemoryFilter::default()
        };
        let page = owner.engine().memories().list(owner.scope(), &filter).await.unwrap();
        page.items.iter().any(|memory| memory.text.contains(&format!("canary{canary}end")))
    }

    async fn check(&self) {
        for (who, user) in USERS.iter().enumerate() {
            let visible = self.visible_to(who).await;
            for (canary, author) in self.authors.iter().enumerate() {
                if !visible.contains(&format!("canary{canary}end")) {
                    continue;
                }
                assert_eq!(USERS[*author].0, user.0, "a memory crossed tenants");
                assert!(
                    *author == who || self.is_shared_with_tenant(canary).await,
                    "a memory crossed to another user"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_crosses_to_another_user_or_tenant(actions in actions()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut test = TestUsers::new();
            for action in actions {
                test.act(action).await;
            }
            test.check().await;
        });
    }
}
