//! Addresses of sessions and entries.

use crate::harness::on_each_store;

#[test]
fn a_session_is_found_by_id_prefix_and_at_last() {
    on_each_store(|world| {
        world.ok(&["new", "--id", "alpha-one"]);
        world.add_messages("alpha-one", &["u:hello"]);
        assert_eq!(world.json(&["info", "alpha"])["id"], "alpha-one");
        world.ok(&["new", "--id", "alpha-two"]);
        world.add_messages("alpha-two", &["u:hello"]);
        let error = world.fail(2, &["info", "alpha"]);
        assert_eq!(error["code"], "address.ambiguous");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("alpha-one") && message.contains("alpha-two"), "{message}");
        assert_eq!(world.json(&["info", "@last"])["id"], "alpha-two");
        assert_eq!(world.fail(3, &["info", "alp"])["code"], "session.not_found");
    });
}

#[test]
fn at_last_is_not_found_without_sessions() {
    on_each_store(|world| {
        assert_eq!(world.fail(3, &["show", "@last"])["code"], "session.not_found");
    });
}

#[test]
fn an_entry_is_found_by_seq_id_prefix_and_label() {
    on_each_store(|world| {
        let session = world.session(&["u:one", "a:two", "u:three"]);
        world.ok(&["label", &session, "2", "middle"]);
        let id = world.lines(&["show", &session])[1]["id"].as_str().unwrap().to_owned();
        for name in ["2", "middle", id.as_str(), &id[..35]] {
            assert_eq!(world.texts(&session, Some(name)), ["one", "two"], "{name}");
        }
        assert_eq!(world.fail(2, &["context", &session, "--at", &id[..8]])["code"], "address.ambiguous");
        for missing in ["99", "nowhere", "0", "ffff"] {
            assert_eq!(
                world.fail(3, &["context", &session, "--at", missing])["code"],
                "entry.not_found",
                "{missing}"
            );
        }
        assert_eq!(world.fail(2, &["branch", &session, "4"])["code"], "input.invalid");
    });
}
