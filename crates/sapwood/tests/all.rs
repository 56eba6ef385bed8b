//! The façade's tests: the verbs over a real store, as a Rust user calls them. One binary, so that it links once.

#[cfg(test)]
mod all {
    mod audit;
    mod compact;
    mod faulty;
    mod graft;
    mod harness;
    mod hooks;
    mod import;
    mod memory;
    mod memory_crossing;
    mod parallel;
    mod sabotage;
    mod simulate;
    mod skills;
    mod turn;
}
