//! Skills through the Rust API: the prompt and the tool for the model, and the effect of branching back.

use std::sync::Arc;

use sapwood::core::entry::Body;
use sapwood::effects::skill::SkillFolders;
use sapwood::engine::skill::Switch;
use sapwood::{Agent, Sapwood, Seq, SessionId};

use super::harness::{RecordingTools, ScriptedModel, ScriptedReply, backends, calls, text};

struct Fixture {
    sapwood: Sapwood,
    model: Arc<ScriptedModel>,
    dir: tempfile::TempDir,
}

fn fixture(replies: Vec<ScriptedReply>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    for (name, about) in [("brew-tea", "How to brew tea."), ("bake-bread", "How to\n  bake bread.")] {
        let folder = dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("---\nname: {name}\ndescription: >\n  {about}\n---\nFirst of {name}: wait.\n");
        std::fs::write(folder.join("SKILL.md"), text).unwrap();
    }
    let (model, tools) = (ScriptedModel::with_replies(replies), Arc::new(RecordingTools::default()));
    let engine = Sapwood::open("memory:").unwrap().engine().clone().with_backends(backends(&model, &tools));
    let engine = engine
        .configured(|config| config.skills = Some(Arc::new(SkillFolders::new(vec![dir.path().to_owned()]))));
    Fixture { sapwood: Sapwood::with_engine(engine), model, dir }
}

impl Fixture {
    async fn switch(&self, session: &SessionId, name: &str, switch: Switch) -> Result<(), sapwood::Error> {
        let (engine, scope) = (self.sapwood.engine(), self.sapwood.scope());
        engine.skills().switch(scope, session, name, switch).await.map(drop)
    }

    fn last_system(&self) -> String {
        self.model.requests.lock().unwrap().last().unwrap().system.clone().unwrap_or_default()
    }

    fn last_tools(&self) -> Vec<String> {
        let requests = self.model.requests.lock().unwrap();
        requests.last().unwrap().tools.iter().map(|tool| tool.name.clone()).collect()
    }
}

#[tokio::test]
async fn the_model_sees_active_skills_and_can_read_them() {
    let replies = vec![calls(&[("1", "skill", r#"{"name": "brew-tea"}"#)]), text("done")];
    let fixture = fixture(replies);
    let agent =
        Agent { system_prompt: Some("Be kind.".into()), skills: vec!["brew-tea".into()], ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    fixture.sapwood.send(&session, "tea, please").await.unwrap();
    let system = fixture.last_system();
    assert!(system.starts_with("Be kind.") && system.contains("\n- brew-tea: How to brew tea."), "{system}");
    assert!(
        !system.contains("bake-bread") && !system.contains("wait"),
        "only names and descriptions: {system}"
    );
    assert!(fixture.model.last_messages().contains("First of brew-tea: wait."));
}

#[tokio::test]
async fn without_active_skills_there_is_no_prompt_and_no_tool() {
    let fixture = fixture(vec![text("hello"), text("hello"), text("hello")]);
    let session = fixture.sapwood.start(Agent::default()).await.unwrap();
    fixture.sapwood.send(&session, "hi").await.unwrap();
    assert!(!fixture.last_system().contains("skill") && !fixture.last_tools().contains(&"skill".to_owned()));
    fixture.switch(&session, "bake-bread", Switch::On).await.unwrap();
    fixture.sapwood.send(&session, "hi").await.unwrap();
    assert!(fixture.last_system().contains("- bake-bread: How to bake bread."), "{}", fixture.last_system());
    assert!(fixture.last_tools().contains(&"skill".to_owned()));
    fixture.switch(&session, "bake-bread", Switch::Off).await.unwrap();
    fixture.sapwood.send(&session, "hi").await.unwrap();
    assert!(!fixture.last_tools().contains(&"skill".to_owned()));
}

#[tokio::test]
async fn an_inactive_skill_cannot_be_read() {
    let replies = vec![calls(&[("1", "skill", r#"{"name": "bake-bread"}"#)]), text("well")];
    let fixture = fixture(replies);
    let agent = Agent { skills: vec!["brew-tea".into()], ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    fixture.sapwood.send(&session, "bread, please").await.unwrap();
    assert!(fixture.model.last_messages().contains("No active skill `bake-bread`"));
}

#[tokio::test]
async fn branching_back_undoes_an_activation() {
    let fixture = fixture(Vec::new());
    let session = fixture.sapwood.open_session(Default::default()).await.unwrap();
    fixture.sapwood.inject(&session, vec![sapwood::user_text("one")]).await.unwrap();
    fixture.switch(&session, "brew-tea", Switch::On).await.unwrap();
    fixture.switch(&session, "brew-tea", Switch::On).await.unwrap();
    let (engine, scope) = (fixture.sapwood.engine(), fixture.sapwood.scope());
    let records = engine.store().read_after(scope, &session, Seq::ZERO, 100).await.unwrap();
    let changes = records.iter().filter(|record| matches!(record.decode(), Ok(Body::SkillsChanged(_))));
    assert_eq!(changes.count(), 1, "an active skill is not written again");
    engine.edits().branch(scope, &session, records[0].meta.id, None).await.unwrap();
    assert!(engine.skills().active(scope, &session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_missing_skill_is_skipped_and_the_turn_continues() {
    let fixture = fixture(vec![text("hello")]);
    let agent = Agent { skills: vec!["brew-tea".into()], ..Agent::default() };
    let session = fixture.sapwood.start(agent).await.unwrap();
    std::fs::remove_dir_all(fixture.dir.path().join("brew-tea")).unwrap();
    fixture.sapwood.send(&session, "hi").await.unwrap();
    assert!(!fixture.last_system().contains("brew-tea"));
    // A missing skill can still be deactivated, but an unknown skill cannot be activated.
    fixture.switch(&session, "brew-tea", Switch::Off).await.unwrap();
    assert_eq!(fixture.switch(&session, "brew-tea", Switch::On).await.unwrap_err().code(), "skill.not_found");
}
