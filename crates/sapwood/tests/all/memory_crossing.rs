//! Property test: no memory reaches another user unless its owner shared it, and no memory reaches another
//! tenant. Random actions run on a store, and after each action every user reads everything visible to them.

use std::collections::HashMap;

use proptest::prelude::*;
use sapwood::core::Role;
use sapwood::core::port::memory::{MemoryFilter, Standing, Whose};
use sapwood::{Agent, Belongs, Edit, MemoryKind, Sapwood, Scope, SessionId, TenantId, user_text};

const PEOPLE: [(&str, &str); 4] = [("acme", "ana"), ("acme", "bob"), ("acme", "carol"), ("globex", "ana")];

#[derive(Debug, Clone)]
enum Deed {
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

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let who = 0..PEOPLE.len();
    let session = 0..3usize;
    let deed = prop_oneof![
        4 => (who.clone(), session.clone()).prop_map(|(who, session)| Deed::Say { who, session }),
        1 => who.clone().prop_map(|who| Deed::Write { who }),
        2 => (who.clone(), session.clone(), who.clone()).prop_map(|(who, session, with)| Deed::Share { who, session, with }),
        3 => (who.clone(), session.clone()).prop_map(|(who, session)| Deed::Close { who, session }),
        1 => (who.clone(), session.clone()).prop_map(|(who, session)| Deed::Archive { who, session }),
        2 => (who.clone(), session.clone()).prop_map(|(who, session)| Deed::Learn { who, session }),
        1 => (who.clone(), 0..4usize).prop_map(|(who, nth)| Deed::Promote { who, nth }),
        1 => (who.clone(), 0..4usize).prop_map(|(who, nth)| Deed::TakeBack { who, nth }),
        1 => (who, session).prop_map(|(who, session)| Deed::Erase { who, session }),
    ];
    prop::collection::vec(deed, 1..40)
}

struct Town {
    people: Vec<Sapwood>,
    sessions: HashMap<(usize, usize), SessionId>,
    /// The user who mentioned canary number n.
    said_by: Vec<usize>,
}

impl Town {
    fn new() -> Self {
        let house = Sapwood::open("memory:").unwrap();
        let scope = |(tenant, user): (&str, &str)| {
            Scope::user(tenant.parse::<TenantId>().unwrap(), user.parse().unwrap())
        };
        let people = PEOPLE.into_iter().map(|person| house.with_scope(scope(person))).collect();
        Self { people, sessions: HashMap::new(), said_by: Vec::new() }
    }

    fn canary(&mut self, who: usize) -> String {
        self.said_by.push(who);
        format!("canary{}end", self.said_by.len() - 1)
    }

    async fn session(&mut self, who: usize, nth: usize) -> SessionId {
        if let Some(known) = self.sessions.get(&(who, nth)) {
            return known.clone();
        }
        let new = self.people[who].open_session(Default::default()).await.unwrap();
        self.sessions.insert((who, nth), new.clone());
        new
    }

    /// Perform an action, which may be refused. Only what users see afterwards is checked.
    async fn act(&mut self, deed: Deed) {
        match deed {
            Deed::Say { who, session } => {
                let session = self.session(who, session).await;
                let words = format!("Remember that the bird of today is {}.", self.canary(who));
                let _ = self.people[who].inject(&session, vec![user_text(words)]).await;
            }
            Deed::Write { who } => {
                let words = format!("The fish is {}", self.canary(who));
                self.people[who].remember(words, MemoryKind::Fact).await.unwrap();
            }
            Deed::Share { who, session, with } => {
                let session = self.session(who, session).await;
                let member = self.people[with].scope().principal.clone();
                let (engine, scope) = (self.people[who].engine(), self.people[who].scope());
                let _ = engine.share(scope, &session, member, Some(Role::Collaborator)).await;
            }
            Deed::Close { who, session } => {
                for owner in 0..PEOPLE.len() {
                    let session = self.session(owner, session).await;
                    let _ = self.people[who].close(&session).await;
                }
            }
            Deed::Archive { who, session } => {
                let session = self.session(who, session).await;
                let _ = self.people[who].archive(&session).await;
            }
            Deed::Learn { who, session } => {
                for owner in 0..PEOPLE.len() {
                    let session = self.session(owner, session).await;
                    let _ = self.people[who].learn(&session).await;
                }
            }
            Deed::Promote { who, nth } => self.give(who, nth, Belongs::Tenant).await,
            Deed::TakeBack { who, nth } => {
                let own = Belongs::To(self.people[who].scope().principal.clone());
                self.give(who, nth, own).await;
            }
            Deed::Erase { who, session } => {
                if let Some(session) = self.sessions.remove(&(who, session)) {
                    let (engine, scope) = (self.people[who].engine(), self.people[who].scope());
                    engine.erase(scope, &session).await.unwrap();
                }
            }
        }
    }

    async fn give(&self, who: usize, nth: usize, belongs: Belongs) {
        let memories = self.people[who].memories().await.unwrap();
        if let Some(memory) = memories.get(nth) {
            let edit = Edit { belongs: Some(belongs), ..Edit::default() };
            let _ = self.people[who].edit_memory(memory.id, edit).await;
        }
    }

    /// All text that a user sees in all places that show memories.
    async fn seen_by(&self, who: usize) -> String {
        let person = &self.people[who];
        let (engine, scope) = (person.engine(), person.scope());
        let mut seen = String::new();
        for whose in
            [Whose::Any, Whose::For(self.people[0].scope().principal.clone()), Whose::Only(Belongs::Tenant)]
        {
            let filter = MemoryFilter { whose, standing: Standing::Any, ..MemoryFilter::default() };
            seen += &format!("{:?}", engine.memories(scope, &filter).await.unwrap());
        }
        seen +=
            &format!("{:?}", person.recollect("which bird is it today, and the fish?", 50).await.unwrap());
        let session = person.start(Agent::default()).await.unwrap();
        seen += &person.context(&session).await.unwrap().system.unwrap_or_default();
        engine.erase(scope, &session).await.unwrap();
        seen
    }

    /// Whether a canary is shared with the tenant now, as its author sees it.
    async fn is_everybodys(&self, canary: usize) -> bool {
        let owner = &self.people[self.said_by[canary]];
        let filter = MemoryFilter {
            whose: Whose::Only(Belongs::Tenant),
            standing: Standing::Any,
            ..MemoryFilter::default()
        };
        let page = owner.engine().memories(owner.scope(), &filter).await.unwrap();
        page.items.iter().any(|memory| memory.text.contains(&format!("canary{canary}end")))
    }

    async fn check(&self) {
        for (who, person) in PEOPLE.iter().enumerate() {
            let seen = self.seen_by(who).await;
            for (canary, said_by) in self.said_by.iter().enumerate() {
                if !seen.contains(&format!("canary{canary}end")) {
                    continue;
                }
                assert_eq!(PEOPLE[*said_by].0, person.0, "a memory crossed tenants");
                assert!(
                    *said_by == who || self.is_everybodys(canary).await,
                    "a memory crossed to another user"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_crosses_to_another_user_or_tenant(deeds in deeds()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut town = Town::new();
            for deed in deeds {
                town.act(deed).await;
            }
            town.check().await;
        });
    }
}
