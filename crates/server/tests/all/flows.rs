//! Flows over HTTP: started, shown with the status of each node, answered, cancelled. Invalid flows are rejected before
//! anything runs.

use serde_json::{Value, json};

use crate::harness::House;
use crate::rights::{stage, wait_for_approval};

async fn wait_for(house: &House, run: &str, status: &str) -> Value {
    for _ in 0..crate::wire::LOOKS_MAX {
        let view = house.get("ana", &format!("/v1/flows/{run}")).await.json();
        if view["status"] == status {
            return view;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    let view = house.get("ana", &format!("/v1/flows/{run}")).await.json();
    panic!("the run did not reach {status}: {view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_is_started_shown_and_listed() {
    let house = House::open().await;
    let new = json!({ "flow": stage("say hello to {{input}}"), "input": "ana", "id": "greet" });
    let started = house.post("ana", "/v1/flows", &new).await;
    assert_eq!((started.status, started.json()["run"].as_str()), (202, Some("flow-greet")));
    let view = wait_for(&house, "flow-greet", "completed").await;
    let work = &view["nodes"][1];
    assert_eq!((work["status"].as_str(), work["visits"].as_u64()), (Some("done"), Some(1)), "{view}");
    assert_eq!(view["edges"][0], json!({"from":"input","to":"work","type":"forward","status":"completed"}));
    assert_eq!(view["results"][0]["text"], "Hello, you.");
    let session = work["session"].as_str().unwrap();
    let context = house.get("ana", &format!("/v1/sessions/{session}/context")).await.json();
    let said =
        context["messages"].as_array().unwrap().iter().any(|message| message["text"] == "say hello to ana");
    assert!(said, "{context}");
    let runs = house.get("ana", "/v1/flows").await.json();
    assert_eq!((runs["items"].as_array().unwrap().len(), runs["items"][0]["done"].as_u64()), (1, Some(1)));
    assert_eq!(house.get("bob", "/v1/flows").await.json()["items"], json!([]));
    let again = house.post("ana", "/v1/flows", &new).await;
    assert_eq!((again.status, again.code().as_str()), (409, "session.exists"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_flow_is_rejected_before_anything_runs() {
    let house = House::open().await;
    let mut flow = stage("hello");
    flow["workflow"]["nodes"][1]["agent_ref"] = json!("stranger");
    flow["workflow"]["agents"] =
        json!([{ "id": "stranger", "allowed_commands": ["*"], "approvals": "auto" }]);
    flow["workflow"]["nodes"][1]["required_readings"] = json!(["charter"]);
    let refused = house.post("ana", "/v1/flows", &json!({ "flow": flow })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "flow.invalid"));
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("there is no agent stranger") && detail.contains("charter is missing"),
        "{detail}"
    );
    let mut unknown = stage("hello");
    unknown["workflow"]["nodes"][1]["agent"] = json!("default");
    let refused = house.post("ana", "/v1/flows", &json!({ "flow": unknown })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "workflow.invalid"));
    assert_eq!(house.get("ana", "/v1/sessions").await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_resumes_the_run() {
    let house = House::open().await;
    let new = json!({ "flow": stage("please ask"), "id": "asks" });
    house.post("ana", "/v1/flows", &new).await;
    let approval = wait_for_approval(&house, "flow-asks__at.work").await;
    let view = wait_for(&house, "flow-asks", "waiting").await;
    assert_eq!(view["approvals"][0]["approval"], approval.as_str());
    let answer = json!({ "answer": "approved", "reason": "yes" });
    assert_eq!(house.post("ana", &format!("/v1/approvals/{approval}"), &answer).await.status, 202);
    wait_for(&house, "flow-asks", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_flow_can_be_cancelled_once() {
    let house = House::open().await;
    house.post("ana", "/v1/flows", &json!({ "flow": stage("please hang"), "id": "hangs" })).await;
    wait_for(&house, "flow-hangs", "open").await;
    assert_eq!(house.post("ana", "/v1/flows/flow-hangs/cancel", &json!({})).await.status, 202);
    let view = wait_for(&house, "flow-hangs", "cancelled").await;
    assert_eq!(view["nodes"][1]["code"], "turn.cancelled", "{view}");
    let again = house.post("ana", "/v1/flows/flow-hangs/cancel", &json!({})).await;
    assert_eq!((again.status, again.code().as_str()), (409, "flow.ended"));
    assert_eq!(house.post("ana", "/v1/flows/flow-hangs/resume", &json!({})).await.status, 202);
    assert_eq!(house.get("ana", "/v1/flows/flow-hangs").await.json()["status"], "cancelled");
}
