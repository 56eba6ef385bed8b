//! Interactive chats in a real terminal.

use crate::harness::World;
use crate::terminal::Terminal;

fn world() -> World {
    World::new("sqlite")
}

/// Writes a cassette and returns it as a model name.
fn script(world: &World, name: &str, text: &str) -> String {
    let path = world.path(&format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    format!("scripted:{}", path.display())
}

fn agent(world: &World, text: &str) {
    std::fs::create_dir_all(world.path("agents")).unwrap();
    std::fs::write(world.path("agents/helper.yaml"), format!("id: helper\n{text}")).unwrap();
}

fn user_texts(world: &World) -> Vec<String> {
    let context = world.json(&["context", "@last"]);
    let messages = context["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user");
    messages.map(|message| message["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_chat_needs_no_key_and_prints_how_to_continue() {
    let world = world();
    let terminal = Terminal::open(&world, &["chat"]);
    terminal.send_line("hello");
    terminal.wait_for("Things to try with me");
    let screen = terminal.wait_for("context ▰");
    assert!(screen.contains("Sapwood · demo"), "{screen}");
    assert!(screen.contains(" • list or read FILE"), "markdown is not rendered:\n{screen}");
    terminal.wait_for_prompt();
    terminal.press("C-d");
    let screen = terminal.wait_for("resume with: sapwood chat");
    terminal.wait_for_end();
    let session = screen.rsplit("sapwood chat ").next().unwrap().lines().next().unwrap().trim().to_owned();
    assert_eq!(world.texts(&session, None)[0], "hello");
}

#[test]
fn a_chat_that_was_only_opened_leaves_no_session() {
    let world = world();
    let terminal = Terminal::open(&world, &["chat"]);
    terminal.wait_for_prompt();
    terminal.press("C-c");
    terminal.wait_for("Ctrl-C again");
    terminal.wait_for_prompt();
    terminal.press("C-c");
    terminal.wait_for_end();
    assert_eq!(world.ok(&["ls"]), "");
}

#[test]
fn a_message_can_have_several_lines() {
    let world = world();
    let terminal = Terminal::open(&world, &["chat"]);
    terminal.wait_for_prompt();
    terminal.write("one\\").press("Enter").write("two").press("M-Enter").write("three").press("Enter");
    terminal.wait_for("context ▰");
    terminal.wait_for_prompt();
    terminal.paste("four\nfive").press("Enter");
    terminal.wait_until("the second answer", |screen| screen.matches("context ▰").count() == 2);
    assert_eq!(user_texts(&world), ["one\ntwo\nthree", "four\nfive"]);
}

#[test]
fn ctrl_c_cancels_the_turn_but_not_the_program() {
    let world = world();
    let terminal = Terminal::open(&world, &["chat"]);
    terminal.send_line("write 2000 words");
    terminal.wait_for("writing · ");
    terminal.press("C-c");
    terminal.wait_for("the turn was cancelled");
    terminal.send_line("hello");
    terminal.wait_for("Things to try with me");
    let events = world.lines(&["events", "@last"]);
    assert_eq!(events.iter().filter(|event| event["type"] == "session:cancelled").count(), 1);
    let kept = events.iter().find(|event| event["entry"]["stop"] == "aborted").expect("a partial answer");
    assert!(!kept["entry"]["parts"][0]["text"].as_str().unwrap().is_empty());
}

#[test]
fn a_killed_turn_continues_when_the_session_is_reopened() {
    let world = world();
    let model = script(
        &world,
        "slow",
        "by = \"history\"\n[[calls]]\npieces = [{ text = \"It begins\" }, { wait_ms = 60000 }, { text = \" and ends.\" }]\n",
    );
    let terminal = Terminal::open(&world, &["chat", "--model", &model]);
    terminal.send_line("a question");
    terminal.wait_for("It begins");
    terminal.kill();
    let quick =
        script(&world, "slow", "by = \"history\"\n[[calls]]\npieces = [{ text = \"All is well.\" }]\n");
    assert_eq!(quick, model);
    let again = Terminal::open(&world, &["chat", "-c"]);
    let screen = again.wait_for("All is well.");
    assert!(screen.contains("a turn was interrupted here"), "{screen}");
    assert!(screen.contains("› a question"), "{screen}");
    again.wait_for_prompt();
    assert_eq!(user_texts(&world), ["a question"]);
}

#[test]
fn an_approval_is_answered_in_place() {
    let world = world();
    agent(&world, "tools: [write_file, read_file]\nfs_scope: project\napprovals: ask\n");
    let terminal = Terminal::open(&world, &["chat", "--agent", "helper"]);
    terminal.send_line("write notes.txt: first");
    let screen = terminal.wait_for("y yes · a always in this chat · n no · r no, and say why");
    assert!(screen.contains("notes.txt"), "{screen}");
    assert!(!world.path("notes.txt").exists());
    terminal.press("n");
    let screen = terminal.wait_for("n refused");
    assert!(screen.contains("content: first"), "the request is not shown completely:\n{screen}");
    assert!(!world.path("notes.txt").exists(), "{screen}");
    terminal.send_line("write notes.txt: second");
    terminal.wait_for("y yes · a always");
    terminal.press("a");
    terminal.wait_for("✓ write_file notes.txt");
    assert_eq!(std::fs::read_to_string(world.path("notes.txt")).unwrap().trim(), "second");
    terminal.send_line("write notes.txt: third");
    terminal.wait_until("the third version of the file", |_| {
        std::fs::read_to_string(world.path("notes.txt")).is_ok_and(|text| text.trim() == "third")
    });
    terminal.wait_for_prompt();
}

#[test]
fn a_refusal_can_have_a_reason_that_the_model_reads() {
    let world = world();
    agent(&world, "tools: [write_file]\nfs_scope: project\n");
    let terminal = Terminal::open(&world, &["chat", "--agent", "helper"]);
    terminal.send_line("write notes.txt: x");
    terminal.wait_for("r no, and say why");
    terminal.press("r").write("not in this directory").press("Enter");
    terminal.wait_for("refused: not in this directory");
    terminal.wait_for_prompt();
    let results = world.lines(&["events", "@last"]);
    let result = results.iter().find(|event| event["type"] == "agent:tool_result").unwrap();
    assert!(result["entry"]["parts"][0]["text"].as_str().unwrap().contains("not in this directory"));
}

#[test]
fn a_pending_approval_survives_a_kill() {
    let world = world();
    agent(&world, "tools: [write_file]\nfs_scope: project\n");
    let terminal = Terminal::open(&world, &["chat", "--agent", "helper"]);
    terminal.send_line("write notes.txt: kept");
    terminal.wait_for("y yes");
    terminal.kill();
    let again = Terminal::open(&world, &["chat", "-c"]);
    again.wait_for("y yes");
    again.press("y");
    again.wait_for("✓ write_file notes.txt");
    again.wait_for_prompt();
    let events = world.lines(&["events", "@last"]);
    assert_eq!(events.iter().filter(|event| event["type"] == "agent:tool_result").count(), 1);
}

#[test]
fn slash_commands_work_on_the_session() {
    let world = world();
    let terminal = Terminal::open(&world, &["chat"]);
    terminal.send_line("/tree");
    terminal.wait_for("there is no session yet");
    terminal.send_line("what did I say?");
    terminal.wait_for("context ▰");
    terminal.send_line("/tree");
    terminal.wait_for("◀ leaf");
    terminal.send_line("/nonsense");
    terminal.wait_for("no command /nonsense");
    terminal.send_line("/fork");
    terminal.wait_for("now in session");
    terminal.send_line("/model unknown/model");
    terminal.wait_for("there is no model unknown/model");
    terminal.send_line("/model demo");
    terminal.wait_for("now using demo");
    terminal.wait_for_prompt();
    terminal.send_line("/export out.jsonl");
    terminal.wait_for("out.jsonl:");
    assert!(world.path("out.jsonl").exists());
    terminal.send_line("/undo");
    terminal.wait_until("the message in the prompt", |screen| {
        screen.lines().last().unwrap().contains("› what did I say?")
    });
    terminal.press("C-u").write("/quit").press("Enter");
    terminal.wait_for_end();
    assert_eq!(world.lines(&["ls"]).len(), 2);
}

#[test]
fn input_typed_while_a_turn_runs_is_added_to_it() {
    let world = world();
    let model = script(
        &world,
        "two",
        "[[calls]]\npieces = [{ text = \"Working\" }, { wait_ms = 3000 }, { text = \" done.\" }]\n\
         [[calls]]\nexpect = \"also this\"\npieces = [{ text = \"That too.\" }]\n",
    );
    let terminal = Terminal::open(&world, &["chat", "--model", &model]);
    terminal.send_line("do it");
    terminal.wait_for("Working");
    terminal.write("also this").press("Enter");
    terminal.wait_for("That too.");
    terminal.wait_for_prompt();
    assert_eq!(user_texts(&world), ["do it", "also this"]);
}

#[test]
fn an_answer_is_drawn_once_and_its_escape_sequences_are_removed() {
    let world = world();
    let model = script(
        &world,
        "art",
        "[[calls]]\npieces = [{ text = \"# Title\\n\\nSome **bold** text.\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n```\\ncode\\n\" }, \
         { text = \"```\\n\\n\\u001b[2J\\u001b]0;owned\\u0007still here\" }]\n",
    );
    let terminal = Terminal::open(&world, &["chat", "--model", &model]);
    terminal.send_line("draw");
    terminal.wait_for("still here");
    let screen = terminal.wait_for_prompt();
    for line in ["Title", "Some bold text.", "a │ b", "──┼──", "    code"] {
        assert_eq!(screen.lines().filter(|shown| shown.trim_end() == line).count(), 1, "{line:?}:\n{screen}");
    }
    assert!(screen.contains("› draw"), "the screen was cleared:\n{screen}");
}

#[test]
fn without_colours_the_answer_is_printed_unformatted() {
    let world = world();
    let model = script(&world, "plain", "[[calls]]\npieces = [{ text = \"Some **bold** text.\" }]\n");
    let terminal = Terminal::open_with(&world, &["chat", "--model", &model], &[("NO_COLOR", "1")]);
    terminal.send_line("x");
    terminal.wait_for("Some **bold** text.");
    terminal.wait_for_prompt();
    agent(&world, "tools: [write_file]\nfs_scope: project\n");
    let asking = Terminal::open_with(&world, &["chat", "--agent", "helper"], &[("NO_COLOR", "1")]);
    asking.send_line("write notes.txt: x");
    asking.wait_for("y yes");
    asking.press("y");
    asking.wait_for("✓ write_file notes.txt");
    asking.wait_for_prompt();
}

#[test]
fn the_history_is_saved_and_private() {
    let world = world();
    let terminal = Terminal::open(&world, &["chat"]);
    terminal.send_line("a line to remember");
    terminal.wait_for("context ▰");
    terminal.wait_for_prompt();
    terminal.press_ctrl_d_until_end();
    let file = world.path(".local/share/sapwood/chat-history");
    assert!(std::fs::read_to_string(&file).unwrap().contains("a line to remember"));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = Terminal::open(&world, &["chat"]);
    again.wait_for_prompt();
    again.press("Up");
    again.wait_until("the line in the prompt", |screen| {
        screen.lines().last().unwrap().contains("a line to remember")
    });
}
