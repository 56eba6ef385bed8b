//! Text output for users.

use crate::harness::{World, assistant, log_file, user};

#[test]
fn a_tree_draws_side_branches_next_to_the_active_path() {
    let world = World::new("sqlite");
    let session = world.session(&["u:Hello", "a:Hi", "u:First try", "a:No"]);
    world.ok(&["label", &session, "2", "start"]);
    world.ok(&["branch", &session, "2"]);
    world.add_messages(&session, &["u:Second try", "a:Yes"]);
    let expected = "\
● 1 user  Hello
● 2 assistant  Hi [start]
├─○ 3 user  First try
│ ○ 4 assistant  No
● 7 user  Second try
● 8 assistant  Yes ◀ leaf";
    assert_eq!(world.ok(&["tree", &session]), expected);
}

#[test]
fn branches_of_branches_and_several_roots_are_drawn() {
    let world = World::new("sqlite");
    let session = world.session(&["u:a", "u:b", "u:c"]);
    world.ok(&["branch", &session, "2"]);
    world.add_messages(&session, &["u:d"]);
    world.ok(&["branch", &session, "1"]);
    world.add_messages(&session, &["u:e"]);
    world.ok(&["reset", &session]);
    world.add_messages(&session, &["u:anew"]);
    let expected = "\
○ 1 user  a
├─○ 7 user  e
○ 2 user  b
├─○ 3 user  c
○ 5 user  d
● 9 user  anew ◀ leaf";
    assert_eq!(world.ok(&["tree", &session]), expected);
}

#[test]
fn a_huge_tree_omits_the_middle_of_long_runs() {
    let world = World::new("sqlite");
    let entries: Vec<_> = (0..5_000u32)
        .map(|at| ((at > 0).then_some(at), if at % 2 == 0 { user("ask") } else { assistant("answer") }))
        .collect();
    let file = world.path("long.jsonl");
    std::fs::write(&file, log_file("long", &entries)).unwrap();
    world.ok(&["import", file.to_str().unwrap()]);
    let drawn = world.ok(&["tree", "long"]);
    assert_eq!(drawn.lines().count(), 7, "{drawn}");
    assert!(drawn.contains("… 4994 more"), "{drawn}");
    assert_eq!(world.ok(&["tree", "long", "--all"]).lines().count(), 5_000);
}

#[test]
fn escape_sequences_of_a_transcript_are_not_printed() {
    let world = World::new("sqlite");
    let session = world.session(&[]);
    world.ok(&["inject", &session, "--role", "user", "--text", "\u{1b}]0;owned\u{7}\u{1b}[2Jhello"]);
    for args in
        [&["show", &session][..], &["tree", &session], &["context", &session], &["ls"], &["feed", &session]]
    {
        let mut command = world.command(args);
        command.env("CLICOLOR_FORCE", "1");
        let text = crate::harness::finish(command).out();
        assert!(
            !text.contains("\u{1b}]") && !text.contains("\u{1b}[2J") && !text.contains('\u{7}'),
            "{args:?}: {text:?}"
        );
        assert!(text.contains("hello"), "{args:?}: {text:?}");
    }
}

#[test]
fn piped_text_has_no_colours() {
    let world = World::new("sqlite");
    let session = world.session(&["u:one", "a:two"]);
    for args in
        [&["show", &session][..], &["tree", &session], &["ls"], &["info", &session], &["usage", &session]]
    {
        assert!(!world.ok(args).contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn tool_output_is_shortened_without_the_full_flag() {
    let world = World::new("sqlite");
    let session = world.session(&["u:look"]);
    let output: String = (1..=40).map(|n| format!("line {n}\n")).collect();
    let call = serde_json::json!({ "role": "assistant", "content": [
        { "type": "tool_call", "call_id": "x", "name": "ls", "input": {} }] });
    let result = serde_json::json!({ "role": "tool", "tool_call_id": "x", "name": "ls", "content": output });
    world.ok(&["inject", &session, "--message", &call.to_string()]);
    world.ok(&["inject", &session, "--message", &result.to_string()]);
    let short = world.ok(&["show", &session]);
    assert!(
        short.contains("→ ls {}") && short.contains("… 34 more lines") && !short.contains("line 40"),
        "{short}"
    );
    assert!(world.ok(&["show", &session, "--full"]).contains("line 40"));
}

#[test]
fn the_help_names_every_command_and_the_exit_codes() {
    let world = World::new("sqlite");
    let help = world.ok(&["--help"]);
    for command in [
        "chat",
        "send",
        "cancel",
        "resume",
        "approve",
        "deny",
        "agent",
        "new",
        "ls",
        "show",
        "tree",
        "context",
        "events",
        "inject",
        "branch",
        "fork",
        "label",
        "rename",
        "reset",
        "trim",
        "close",
        "archive",
        "erase",
        "search",
        "info",
        "ancestry",
        "usage",
        "feed",
        "ledger",
        "archives",
        "members",
        "share",
        "audit",
        "export",
        "import",
        "doctor",
        "completions",
        "version",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(command)),
            "{command} is missing:\n{help}"
        );
        assert_eq!(world.run(&[command, "--help"]).status, Some(0), "{command}");
    }
    assert!(help.contains("3 not found, 4 conflict, 5 permission denied"));
}
