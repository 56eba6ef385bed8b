//! Error reporting: exit codes, JSON shapes, hints.

use serde_json::json;

use crate::harness::{World, finish, on_each_store};

#[test]
fn usage_errors_are_json_and_exit_with_two() {
    let world = World::new("sqlite");
    for args in [
        &["bogus"][..],
        &[],
        &["inject"],
        &["inject", "s", "--text", "no role"],
        &["inject", "s", "--role", "user"],
        &["inject", "s", "--role", "user", "--text", "x", "--message", "{}"],
        &["trim", "s"],
        &["trim", "s", "--keep-last", "-1"],
        &["trim", "s", "--keep-last", "many"],
        &["events", "s", "--after", "-3"],
        &["ls", "--limit", "0"],
        &["ls", "--limit", "-5"],
        &["ls", "--state", "asleep"],
        &["ls", "--since", "yesterday"],
        &["ls", "--no-such-option"],
        &["fork", "s", "--at", "1", "--keep-first", "1"],
        &["share", "s", "bob", "--role", "owner"],
        &["export", "s", "--format", "papyrus"],
        &["new", "--id", "../escape"],
        &["--tenant", "no/slash", "ls"],
        &["--as", "", "ls"],
    ] {
        let error = world.fail(2, args);
        assert!(error["code"].as_str().unwrap().starts_with("input."), "{args:?}: {error}");
    }
}

#[test]
fn usage_errors_name_the_option_and_its_value() {
    let world = World::new("sqlite");
    let error = world.fail(2, &["trim", "s", "--keep-last", "-1"]);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("-1") && message.contains("--keep-last"), "{message}");
    let ran = world.run(&["trim", "s", "--keep-last", "-1"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("'-1'") && ran.stderr.contains("--keep-last"), "{}", ran.stderr);
}

#[test]
fn the_json_flag_is_accepted_before_and_after_the_command() {
    let world = World::new("sqlite");
    for args in [&["--json", "info", "ghost"][..], &["info", "--json", "ghost"], &["info", "ghost", "--json"]]
    {
        let ran = world.run(args);
        assert_eq!(ran.status, Some(3));
        assert_eq!(ran.error()["code"], "session.not_found");
    }
}

#[test]
fn text_errors_have_a_hint_on_stderr_and_nothing_on_stdout() {
    let world = World::new("sqlite");
    let ran = world.run(&["show", "ghost"]);
    assert_eq!((ran.status, ran.out().as_str()), (Some(3), ""));
    assert_eq!(
        ran.stderr,
        "error: no session `ghost`\n  hint: run `sapwood ls` to list your sessions, or `sapwood new` to create one\n"
    );
}

#[test]
fn a_bad_store_url_is_named() {
    let world = World::new("sqlite");
    for url in ["nonsense", "mysql:x", "sqlite:", "jsonl:"] {
        let mut command = world.bare();
        command.args(["--store", url, "ls", "--json"]);
        let ran = finish(command);
        assert_eq!(ran.status, Some(2), "{url}: {}", ran.stderr);
        assert_eq!(ran.error()["code"], "input.invalid");
    }
}

#[test]
fn a_file_that_is_not_a_store_is_not_changed() {
    let world = World::new("sqlite");
    let file = world.path("letter.txt");
    std::fs::write(&file, "Dear Sir or Madam, this is no database at all.\n".repeat(100)).unwrap();
    let before = std::fs::read(&file).unwrap();
    let mut command = world.bare();
    command.args(["--store", &format!("sqlite:{}", file.display()), "ls", "--json"]);
    let ran = finish(command);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(ran.error()["code"].as_str().unwrap().starts_with("store."));
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn erase_requires_confirmation() {
    on_each_store(|world| {
        let session = world.session(&["u:precious"]);
        let error = world.fail(2, &["erase", &session]);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&session) && message.contains("1 entry"), "{message}");
        assert!(error["hint"].as_str().unwrap().contains("--yes"));
        assert_eq!(world.json(&["erase", &session, "--yes"]), json!({ "id": session, "erased": true }));
        assert_eq!(world.fail(3, &["info", &session])["code"], "session.not_found");
        let erased = world.lines(&["audit", "--session", &session]);
        assert_eq!(erased.last().unwrap()["action"], "erase");
    });
}

#[test]
fn an_archived_session_rejects_writes_until_it_is_reopened() {
    on_each_store(|world| {
        let session = world.session(&["u:one"]);
        assert_eq!(world.json(&["close", &session])["state"], "closed");
        world.add_messages(&session, &["u:two"]);
        assert_eq!(world.json(&["info", &session])["state"], "active");
        assert_eq!(world.json(&["archive", &session])["state"], "archived");
        let error = world.fail(4, &["inject", &session, "--role", "user", "--text", "three"]);
        assert_eq!(error["code"], "session.archived");
        assert!(error["hint"].as_str().unwrap().contains("--reopen"));
        assert_eq!(world.json(&["archive", &session, "--reopen"])["state"], "active");
        world.add_messages(&session, &["u:three"]);
        assert_eq!(world.texts(&session, None), ["one", "two", "three"]);
    });
}

#[test]
fn a_strict_configuration_names_the_bad_key_and_the_file() {
    let world = World::new("sqlite");
    std::fs::write(world.path("sapwood.toml"), "stor = \"memory:\"\n").unwrap();
    let error = world.fail(2, &["ls"]);
    assert_eq!(error["code"], "config.invalid");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("stor") && message.contains("sapwood.toml"), "{message}");
}

#[test]
fn a_project_file_sets_the_store_and_the_environment_overrides_it() {
    let world = World::new("sqlite");
    let (project, below) = (world.path("project"), world.path("project/deep/below"));
    std::fs::create_dir_all(&below).unwrap();
    std::fs::write(project.join("sapwood.toml"), "store = \"sqlite:here.db\"\n").unwrap();
    let mut command = world.bare();
    command.current_dir(&below).args(["new", "--id", "kept"]);
    assert_eq!(finish(command).status, Some(0));
    assert!(project.join("here.db").is_file());
    let mut command = world.bare();
    command.current_dir(&below).env("SAPWOOD_STORE", &world.url).args(["ls", "--json"]);
    assert_eq!(finish(command).out(), "");
    let mut command = world.bare();
    command.current_dir(&below).env("SAPWOOD_STORE", "").args(["info", "kept", "--json"]);
    assert_eq!(finish(command).status, Some(0));
}

#[cfg(unix)]
#[test]
fn the_default_store_is_private_and_in_the_home_directory() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new("sqlite");
    let home = world.path("data/sapwood-home");
    let mut command = world.bare();
    command.env("SAPWOOD_HOME", &home).args(["new"]);
    assert_eq!(finish(command).status, Some(0));
    assert!(home.join("sapwood.db").is_file());
    assert_eq!(std::fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o700);
    let mut command = world.bare();
    command.args(["new"]);
    assert_eq!(finish(command).status, Some(0));
    let platform = if cfg!(target_os = "macos") {
        "Library/Application Support/Sapwood"
    } else {
        ".local/share/sapwood"
    };
    assert!(world.path(platform).join("sapwood.db").is_file());
}

#[cfg(unix)]
#[test]
fn a_key_is_never_ignored() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new("sqlite");
    let file = world.path("key");
    std::fs::write(&file, "secret\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = world.fail(1, &["--key-file", file.to_str().unwrap(), "ls"]);
    assert_eq!(error["code"], "key.readable");
    if !cfg!(feature = "encryption") {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = world.fail(1, &["--key-file", file.to_str().unwrap(), "ls"]);
        assert_eq!(error["code"], "build.feature");
        assert!(error["hint"].as_str().unwrap().contains("--features encryption"));
        assert_eq!(world.fail(1, &["keychain", "set"])["code"], "build.feature");
    }
    let files = World::new("jsonl");
    let mut command = files.command(&["ls", "--json"]);
    command.env("SAPWOOD_KEY", "secret");
    assert_eq!(finish(command).status, Some(2));
}

#[cfg(feature = "encryption")]
#[test]
fn an_encrypted_store_opens_only_with_its_key() {
    let world = World::new("sqlite");
    let with_key = |key: &str, args: &[&str]| {
        let mut command = world.command(args);
        command.env("SAPWOOD_KEY", key);
        finish(command)
    };
    assert_eq!(with_key("right", &["new", "--id", "s"]).status, Some(0));
    assert_eq!(
        with_key("right", &["inject", "s", "--role", "user", "--text", "plain words"]).status,
        Some(0)
    );
    assert!(with_key("right", &["show", "s"]).out().contains("plain words"));
    for ran in [world.run(&["show", "s", "--json"]), with_key("wrong", &["show", "s", "--json"])] {
        assert_eq!((ran.status, &ran.error()["code"]), (Some(1), &json!("store.locked")));
    }
    for file in ["store.sqlite", "store.sqlite-wal"] {
        let bytes = std::fs::read(world.path(file)).unwrap_or_default();
        assert!(!bytes.windows(5).any(|window| window == b"plain"), "{file} contains plain text");
    }
}
