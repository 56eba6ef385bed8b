//! The vocabulary: English words for prose, stems for identifiers, and templates with slots.

use super::rng::Rng;

/// English words, most frequent first.
const PROSE: &str = "the a to of and in is it that this for with on as be not are we now so from by when if but which \
an can will was should test file error code call function after before only same first each into then than also all \
no one two more has have does because where there value fails type here need check using return them line change \
because still path since instead while without both between these those any other new old case wrong right returns \
handler request response default missing empty config field struct parse write read update next previous result let \
would could make add remove fix keep move run see look found shows means makes sure already never always once twice \
state store cache lock thread queue buffer stream token index table query row column schema migration commit branch \
merge diff patch build compile link release debug log trace metric timeout retry backoff limit budget size count \
length offset cursor page batch chunk block header body payload message event signal channel socket port host server \
client session user account role permission scope secret key certificate hash digest signature version upgrade rollback \
snapshot restore backup archive export import format encoding decoder encoder serializer parser lexer grammar node tree \
leaf root edge graph walk visit order sort filter map reduce fold collect iterate loop break continue recursion stack \
heap pointer reference borrow lifetime owner clone copy drop allocate free leak memory cpu disk network latency \
throughput bandwidth bottleneck profile benchmark measure compare baseline regression flaky deterministic random seed \
fixture mock stub fake assert expect panic unwrap option none some ok err generic trait impl interface class method \
property attribute annotation macro template module package crate dependency registry manifest lockfile workspace-level \
environment variable flag argument option command shell script pipeline stage deploy cluster replica shard partition \
leader follower quorum consensus election heartbeat lease fence epoch term clock drift skew monotonic timestamp timezone \
date duration interval schedule cron job task worker executor scheduler runtime async await future poll waker spawn join \
cancel abort shutdown drain flush sync durable atomic isolated consistent eventual idempotent duplicate conflict race \
deadlock starvation contention mutex semaphore barrier condition notify wake sleep spin yield preempt priority fair \
boundary edge-case corner surprising subtle obvious likely probably certainly apparently roughly exactly nearly hardly \
however therefore otherwise meanwhile finally initially eventually recently currently previously directly implicitly \
explicitly manually automatically silently loudly safely correctly incorrectly properly partially completely entirely \
simple complex nested flat deep shallow wide narrow slow fast cheap expensive small large tiny huge stable unstable \
public private internal external local remote global static dynamic mutable immutable optional required deprecated \
experimental legacy modern portable native virtual abstract concrete explicit hidden visible reachable unreachable dead \
alive stale fresh dirty clean warm cold hot idle busy ready pending running stopped failed succeeded skipped ignored \
accept reject allow deny permit forbid grant revoke rotate expire renew refresh invalidate evict purge compact vacuum \
rebalance migrate convert translate normalize sanitize escape quote trim split concat prepend append insert delete \
truncate extend shrink grow resize align pad round clamp saturate overflow underflow wrap carry shift mask toggle swap \
explain describe document comment rename extract inline simplify restructure rewrite revert bisect reproduce isolate \
narrow-down investigate confirm verify validate review approve suggest propose consider decide agree disagree prefer \
avoid prevent ensure guarantee require assume imply suggest-that indicate reveal hide mention notice remember forget";

const STEMS: &str = "get set new open close read write load save parse render build make find list scan fetch push pull \
send recv apply merge split join map fold visit walk check verify update insert remove delete reset init start stop run \
user account session token entry record block chunk page frame packet header body field value key index table row column \
cursor offset length count size limit budget quota state status event signal message request response error result \
context config option param arg flag env path file dir root node leaf tree branch graph edge queue stack heap pool cache \
buffer stream reader writer parser lexer encoder decoder codec format schema layout version digest hash seed nonce salt \
lock guard lease fence epoch clock timer tick delay retry backoff attempt batch group shard bucket slot segment span \
trace metric gauge label tag name title text line word char byte bits mask mode kind type role scope policy rule filter \
matcher router handler service client server worker task job plan step stage phase turn round draft patch diff delta \
snapshot archive export import summary report audit ledger invoice price amount currency order item cart product stock \
image media audio video thumb asset bundle chart canvas widget button dialog layout theme color pixel point rect shape \
vector matrix tensor kernel batchnorm logits sampler prompt model agent tool memory embed rank score vote peer host port \
socket proxy tunnel cert issuer tenant owner member grant secret vault";

const SYLLABLES: &str = "ka zo mi ter vel dra quin sol pax nor lum bre gan thi ros fen mar dov hal sten";

pub struct Vocabulary {
    pub prose: Vec<&'static str>,
    /// Several thousand names in snake_case.
    pub names: Vec<String>,
    /// Names in PascalCase.
    pub types: Vec<String>,
    /// Directories and packages.
    pub modules: Vec<String>,
}

impl Vocabulary {
    pub fn new(rng: &mut Rng) -> Self {
        let stems: Vec<&str> = STEMS.split_whitespace().collect();
        let syllables: Vec<&str> = SYLLABLES.split_whitespace().collect();
        let mut names: Vec<String> = (0..6_000).map(|_| snake(&stems, rng)).collect();
        names.sort_unstable();
        names.dedup();
        shuffle(&mut names, rng);
        let types = (0..2_500).map(|_| pascal(&stems, rng)).collect();
        let modules = (0..300).map(|_| module(&stems, &syllables, rng)).collect();
        Self { prose: PROSE.split_whitespace().collect(), names, types, modules }
    }
}

fn snake(stems: &[&str], rng: &mut Rng) -> String {
    let words = [1, 2, 2, 2, 3][rng.below(5)];
    let picked: Vec<&str> = (0..words).map(|_| *rng.pick(stems)).collect();
    picked.join("_")
}

fn pascal(stems: &[&str], rng: &mut Rng) -> String {
    let mut name = String::new();
    for _ in 0..rng.between(1, 3) {
        let stem = *rng.pick(stems);
        name.push_str(&stem[..1].to_ascii_uppercase());
        name.push_str(&stem[1..]);
    }
    name
}

fn module(stems: &[&str], syllables: &[&str], rng: &mut Rng) -> String {
    match rng.below(3) {
        0 => (*rng.pick(stems)).to_owned(),
        1 => format!("{}-{}", rng.pick(stems), rng.pick(stems)),
        _ => format!("{}{}", rng.pick(syllables), rng.pick(syllables)),
    }
}

fn shuffle(items: &mut [String], rng: &mut Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last + 1));
    }
}

/// Templates. Slots: %i a name of the current file, %I any name, %T a type, %m a module, %w a word, %n a small
/// number, %N a large number, %p a path, %h a short hash, %u a UUID, %t a time, %% nothing.
pub const SENTENCES: &[&str] = &[
    "The problem is in `%i`: it calls `%i` before `%I` has %w the %w.",
    "I %w the %w in `%p` and the %w %w are gone.",
    "So `%T` %w a %w that %w %w, which is why the %w %w on line %n.",
    "Next I will %w %p and %w whether `%i` is %w.",
    "That %w %w %n of %N %w, and the %w is the same after %h.",
    "Let me look at `%i` first.",
    "There are %n callers of `%i`; only `%I` in %p passes a %w %w.",
    "%w %w %w the %w %w, and %w %w %w %w a %w.",
    "Now the %w: `%T::%i` has to %w before the %w %w, %w %w %w %w.",
    "The test `%i` passes; `%I` still fails with a %w of %n instead of %n.",
    "We could also %w the %w, but %w %w %w %w %w the %w %w %w.",
    "It %w %w because %w %w is %w when the %w is %w.",
    "Done: %n files changed, %n tests pass, and `%i` takes %N µs instead of %N.",
    "The %w in %m %w %w %w; %w, %w and %w are %w %w.",
    "I have not %w `%I`, since its %w %w is %w %w %w.",
];

pub const ASKS: &[&str] = &[
    "Can you %w why `%i` %w %w when the %w is %w?",
    "Please %w the %w in %p so that it %w %w %w.",
    "CI fails on %m since %h, %w %w %w. Have a look at `%I`.",
    "Add a test for `%T::%i` with %n %w %w and a %w %w.",
    "The %w %w %w %w after %n minutes, but only on %m. What does `%i` do there?",
    "Looks good. Now %w the same for `%I`, and %w %w %w the %w.",
    "No, %w %w %w %w %w: the %w must %w before `%i` %w.",
];

pub const CODE: &[&str] = &[
    "    let %i = %i.%I(&%i, %n)?;",
    "    let mut %i = %T::new(%i);",
    "    if %i.%i() > %n {",
    "        return Err(%T::%T { %i, %i: %n });",
    "    }",
    "    }",
    "",
    "}",
    "    for %i in %i.iter().filter(|%i| %i.%i) {",
    "        %i.push(%i.%i.clone());",
    "    // %w %w %w the %w %w, so that %w %w %w.",
    "    match %i {",
    "        %T::%T => %i.%i(%n),",
    "        _ => %I(%i, \"%w %w\"),",
    "pub fn %i(%i: &%T, %i: usize) -> Result<%T> {",
    "pub struct %T {",
    "    pub %i: %T,",
    "    %i: Option<%T>,",
    "use crate::%i::{%T, %T};",
    "    assert_eq!(%i(&%i, %n), Some(%n));",
    "    %i.%i(%i).await?;",
    "    self.%i = self.%i.saturating_add(%n);",
    "    tracing::debug!(%i, \"%w %w %w\");",
    "#[derive(Debug, Clone, PartialEq)]",
];

pub const LOGS: &[&str] = &[
    "test %m::tests::%I ... ok",
    "test %m::tests::%I ... ok",
    "test %m::%i::%I ... ok",
    "test %m::tests::%I ... FAILED",
    "%tZ  INFO %m::%i: %w %w %w request_id=%u took=%Nus",
    "%tZ DEBUG %m::%i: %w %i=%N %i=%n",
    "%tZ  WARN %m::%I: %w %w after %n attempts, %w in %N ms",
    "   Compiling %m v%n.%n.%n (/work/%m)",
    "    Finished `test` profile in %n.%ns",
    "warning: unused variable: `%I` --> %p:%n:%n",
    "[%n/%N] %p %h",
];

pub const LISTING: &[&str] = &[
    "-rw-r--r-- 1 dev dev %N %t %p",
    "-rw-r--r-- 1 dev dev %N %t %p",
    "drwxr-xr-x 4 dev dev 4096 %t %m",
    "%p: %n lines, %N bytes, sha256 %h%h",
];

pub const TRACES: &[&str] = &[
    "  %n: %m::%i::%I",
    "             at ./%p:%n:%n",
    "  %n: core::ops::function::FnOnce::call_once",
    "    at %T.%i (/work/%p:%n:%n)",
    "  File \"/work/%p\", line %n, in %I",
    "    raise %TError(f\"%w %w %w: {%i}\")",
];

pub const JSON_LINES: &[&str] = &[
    "  {\"id\": \"%u\", \"name\": \"%I\", \"%i\": %N, \"state\": \"%w\"},",
    "  {\"path\": \"%p\", \"line\": %n, \"column\": %n, \"rule\": \"%m/%i\", \"severity\": \"warning\"},",
    "    \"%I\": {\"version\": \"%n.%n.%n\", \"resolved\": \"https://registry.example/%m/-/%m-%n.tgz\", \"hash\": \"%h%h%h\"},",
    "    \"%I\": [%n, %n, %N],",
];
