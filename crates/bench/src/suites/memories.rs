//! Fifty sessions mention facts among small talk, and rephrased questions ask for the facts later. Measures how many
//! facts are learned by rules, how many are found, and whether any fact is visible to another user or tenant. The
//! questions were written before the first run and were not tuned afterwards.

use std::time::Instant;

use sapwood::core::port::memory::{Standing, Whose};
use sapwood::store::Durability;
use sapwood::{Agent, Belongs, Engine, MemoryFilter, OpenOptions, Scope, StartOptions, user_text};

use crate::measure::{median, millis};
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "memories";
/// Tenant and user name of each user. Five users of one tenant own the facts. The user of the other tenant has the same
/// name as the first user.
const PEOPLE: [(&str, &str); 6] =
    [("acme", "ana"), ("acme", "bob"), ("acme", "cyd"), ("acme", "dan"), ("acme", "eve"), ("globex", "ana")];
/// Number of other memories per user, as distractors.
const OTHERS: usize = 40;
/// Number of results checked per question.
const FIRST: usize = 5;

/// A fact, a rephrased question about it, and a word of the answer.
const FACTS: [(&str, &str, &str); 50] = [
    ("Our staging database is called heron.", "Which db do we point staging at?", "heron"),
    ("I prefer tabs over spaces in Makefiles.", "How should I indent a makefile?", "tabs"),
    ("We deploy to production every Thursday afternoon.", "What day do releases go live?", "Thursday"),
    ("I am allergic to walnuts.", "Which foods must I avoid?", "walnuts"),
    ("My dog is called Pixel.", "What's my pet's name?", "Pixel"),
    (
        "We decided to use Kafka for the event pipeline.",
        "Which message broker did we choose for events?",
        "Kafka",
    ),
    ("Our invoices are due within 14 days.", "How long do customers have to pay a bill?", "14 days"),
    ("I live in Winterthur with two flatmates.", "Which city is my home in?", "Winterthur"),
    ("My manager is Priya Natarajan.", "Who is my boss?", "Priya"),
    ("We use Grafana for all dashboards.", "Where do I look at metrics?", "Grafana"),
    ("I always want answers in at most five sentences.", "How long may replies be?", "five sentences"),
    ("The payment service listens on port 7443.", "On which port can billing be reached?", "7443"),
    ("Our standup is at 9:15 every morning.", "When is the daily meeting?", "9:15"),
    ("I take the train to Basel on Mondays.", "How do I commute at the start of the week?", "train"),
    ("We switched from Jenkins to Buildkite in March.", "Which CI system is in use now?", "Buildkite"),
    ("My sister Elena is a dentist in Lyon.", "What is Elena's profession?", "dentist"),
    ("Never push directly to the main branch.", "May I commit straight to trunk?", "main branch"),
    ("Our backups are stored in the Frankfurt region.", "Where are snapshots kept?", "Frankfurt"),
    ("I play the cello in an amateur orchestra.", "Which instrument do I have as a hobby?", "cello"),
    (
        "We target Python 3.12 for the data jobs.",
        "What interpreter version do the data scripts need?",
        "3.12",
    ),
    ("My birthday is on 3 October.", "When was I born?", "October"),
    ("Our customer support tool is Zammad.", "Where do client tickets come in?", "Zammad"),
    ("I prefer dark roast coffee without sugar.", "How do I like my drinks in the morning?", "dark roast"),
    ("We agreed that all services log in JSON.", "What format should logging have?", "JSON"),
    ("Our mobile app is written in Kotlin.", "What language is the phone client in?", "Kotlin"),
    ("My car is an old Volvo estate.", "What vehicle do I drive?", "Volvo"),
    ("We host the website at Hetzner.", "Who is our cloud provider?", "Hetzner"),
    ("I work at the cantonal archive as a restorer.", "What is my job?", "restorer"),
    ("Our test suite takes eleven minutes.", "How long do the checks run?", "eleven"),
    ("I hate pop-up notifications.", "Should alerts interrupt me?", "pop-up"),
    ("We keep secrets in Vault and nowhere else.", "Where do credentials belong?", "Vault"),
    ("My daughter starts school in August.", "When does my kid begin class?", "August"),
    ("Our style guide is the Oxford one.", "Which rules do we follow for spelling?", "Oxford"),
    ("I speak Portuguese and some Japanese.", "Which languages do I know?", "Portuguese"),
    ("Remember that the design review is with Mateusz.", "Who approves designs?", "Mateusz"),
    ("We ship the firmware as signed images only.", "How is the firmware released?", "signed"),
    ("My budget for the trip is 1200 francs.", "How much money can I spend on the holiday?", "1200"),
    ("Our feature flags are managed with Unleash.", "What do we toggle features with?", "Unleash"),
    ("I am vegetarian but I eat eggs.", "What is my diet?", "vegetarian"),
    ("We meet the auditors on the last Friday of the month.", "When do the auditors visit?", "Friday"),
    ("My laptop runs Fedora.", "Which operating system do I have?", "Fedora"),
    ("Our cluster has twelve nodes.", "How many machines are there in Kubernetes?", "twelve"),
    ("I drink my tea with oat milk.", "What goes into my tea?", "oat"),
    ("Let's go with PostgreSQL for the ledger.", "Which database holds the ledger?", "PostgreSQL"),
    ("My thesis is about glacier acoustics.", "What do I write my university work on?", "glacier"),
    ("We run the nightly export at 02:30 UTC.", "What time is the data dump made?", "02:30"),
    ("I use Helix as my editor.", "Which IDE should you assume?", "Helix"),
    ("Our landlord is the Schmid family.", "Whom do we rent from?", "Schmid"),
    ("The wifi in the workshop is called sparrow-net.", "What network do I join in the workshop?", "sparrow"),
    ("From now on write commit messages in the imperative.", "How should I phrase commits?", "imperative"),
];

/// Small talk around the facts.
const TALK: [&str; 6] = [
    "Hello, can you help me with something?",
    "That looks good, thank you.",
    "What would you suggest here?",
    "The output is longer than I expected, can you shorten it?",
    "Let me check that and come back.",
    "Could you explain the second part again?",
];

/// Subjects of the other memories, different for each user.
const SUBJECTS: [&str; 8] =
    ["gateway", "scheduler", "mailer", "catalogue", "importer", "renderer", "indexer", "translator"];

fn scope_of(person: usize) -> anyhow::Result<Scope> {
    let (tenant, user) = PEOPLE[person % PEOPLE.len()];
    Ok(Scope::user(tenant.parse()?, user.parse()?))
}

/// The user who mentions a fact. The user of the other tenant mentions no facts.
fn owner_of(fact: usize) -> usize {
    fact % (PEOPLE.len() - 1)
}

#[derive(Default)]
struct Tally {
    learned: usize,
    first: usize,
    among: usize,
    by_all_words: usize,
    crossed: usize,
    times: Vec<f64>,
}

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let engine = stage.open("memories.db", Durability::Normal)?;
    plant(&engine).await?;
    let mut tally = Tally::default();
    for (fact, planted) in FACTS.iter().enumerate() {
        ask_owner(&engine, owner_of(fact), *planted, &mut tally).await?;
        ask_others(&engine, owner_of(fact), *planted, &mut tally).await?;
    }
    stage.close("memories.db", engine)?;
    let share = |count: usize| 100.0 * count as f64 / FACTS.len() as f64;
    let facts = FACTS.len();
    Ok(vec![
        Figure::new(AXIS, format!("facts learned by rules, of {facts}"), share(tally.learned), "%")
            .goal(Goal::AtLeast(90.0)),
        Figure::new(AXIS, "rephrased question, first answer is right", share(tally.first), "%"),
        Figure::new(
            AXIS,
            format!("rephrased question, right answer among the first {FIRST}"),
            share(tally.among),
            "%",
        )
        .goal(Goal::AtLeast(70.0)),
        Figure::new(
            AXIS,
            "the same questions by plain search (all words must match)",
            share(tally.by_all_words),
            "%",
        ),
        Figure::new(AXIS, "memories visible to another user or tenant", tally.crossed as f64, "")
            .goal(Goal::AtMost(0.0)),
        Figure::new(AXIS, "time per question", median(tally.times), "ms"),
    ])
}

/// Create a session per fact, which mentions the fact among small talk, and each user's other memories.
async fn plant(engine: &Engine) -> anyhow::Result<()> {
    for (fact, (statement, ..)) in FACTS.iter().enumerate() {
        let scope = scope_of(owner_of(fact))?;
        let id = Some(format!("session-{fact}").parse()?);
        let (session, _) =
            engine.sessions().open(&scope, OpenOptions { id, ..OpenOptions::default() }).await?;
        let talk = |n: usize| TALK[(fact + n) % TALK.len()];
        let texts = [talk(0), talk(1), *statement, talk(2), talk(3)];
        let bodies = texts.into_iter().map(user_text).collect();
        engine.edits().inject(&scope, &session, bodies, Default::default()).await?;
        engine.sessions().close(&scope, &session).await?;
    }
    for person in 0..PEOPLE.len() {
        let scope = scope_of(person)?;
        let id = Some(format!("others-{person}").parse()?);
        let (session, _) =
            engine.sessions().open(&scope, OpenOptions { id, ..OpenOptions::default() }).await?;
        let other = |n: usize| {
            let subject = SUBJECTS[n % SUBJECTS.len()];
            user_text(format!("Our {subject} number {n} is kept by team {}.", n * 7 + person))
        };
        let bodies = (0..OTHERS).map(other).collect();
        engine.edits().inject(&scope, &session, bodies, Default::default()).await?;
        engine.sessions().close(&scope, &session).await?;
    }
    Ok(())
}

async fn ask_owner(
    engine: &Engine,
    owner: usize,
    (_, question, answer): (&str, &str, &str),
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let scope = scope_of(owner)?;
    let whose = || Whose::For(scope.principal.clone());
    let filter =
        |text: &str| MemoryFilter { whose: whose(), text: text.to_owned(), ..MemoryFilter::default() };
    let known = engine.memories().list(&scope, &filter(&format!("\"{answer}\""))).await?;
    tally.learned += usize::from(!known.items.is_empty());
    let by_words = engine.memories().list(&scope, &filter(question)).await?;
    tally.by_all_words += usize::from(by_words.items.iter().any(|memory| memory.text.contains(answer)));
    let start = Instant::now();
    let found = engine.memories().recollect(&scope, question, whose(), FIRST).await?.found;
    tally.times.push(millis(start.elapsed()));
    let place = found.iter().position(|found| found.memory.text.contains(answer));
    tally.first += usize::from(place == Some(0));
    tally.among += usize::from(place.is_some());
    Ok(())
}

/// Query as every other user, wherever memories appear: lists, searches, questions, and prompts of new sessions.
async fn ask_others(
    engine: &Engine,
    owner: usize,
    (statement, question, answer): (&str, &str, &str),
    tally: &mut Tally,
) -> anyhow::Result<()> {
    for other in (0..PEOPLE.len()).filter(|other| *other != owner) {
        let scope = scope_of(other)?;
        let mut seen = String::new();
        let owned = Belongs::To(scope_of(owner)?.principal);
        // The user with the same name in the other tenant must not see these memories.
        for whose in [Whose::Any, Whose::For(scope.principal.clone()), Whose::Only(owned)] {
            let standing = Standing::Any;
            let filter = MemoryFilter { whose, standing, text: answer.to_owned(), ..MemoryFilter::default() };
            for memory in engine.memories().list(&scope, &filter).await?.items {
                seen.push_str(&memory.text);
            }
        }
        for asked in [question, statement] {
            let whose = Whose::For(scope.principal.clone());
            for found in engine.memories().recollect(&scope, asked, whose, 50).await?.found {
                seen.push_str(&found.memory.text);
            }
        }
        let options = StartOptions { agent: Agent::default(), ..StartOptions::default() };
        let (session, _) = engine.sessions().start(&scope, options).await?;
        seen.push_str(&engine.views().context(&scope, &session, None).await?.system.unwrap_or_default());
        engine.sessions().erase(&scope, &session).await?;
        tally.crossed += usize::from(seen.contains(answer));
    }
    Ok(())
}
