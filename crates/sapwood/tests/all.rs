//! Tests of the façade: its operations over a real store, as a Rust user calls them. One binary, to
//! link only once.

#[cfg(test)]
mod all {
    mod allowances;
    mod approvals;
    mod audit;
    mod compact;
    mod configuration;
    mod docs;
    mod examples;
    mod faulty;
    mod graft;
    mod harness;
    mod hooks;
    mod import;
    mod inputs;
    mod memory;
    mod memory_crossing;
    mod own;
    mod parallel;
    mod personal_data;
    mod pressure;
    mod sabotage;
    mod simulate;
    mod skills;
    mod turn;
    mod turn_log;
}
