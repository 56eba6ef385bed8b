//! Flows over HTTP: started, shown with the status of each node, answered, cancelled. Invalid flows are rejected before
//! anything runs.

use serde_json::{Value, json};

use crate::harness::TestServer;
use crate::rights::{one_node_flow, wait_for_approval};

async fn wait_for(server: &TestServer, run: &str, status: &str) -> Value {
    for _ in 0..crate::wire::POLLS_MAX {
        let view = server.get("ana", &format!("/v1/flows/{run}")).await.json();
        if view["status"] == status {
            return view;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    let view = server.get("ana", &format!("/v1/flows/{run}")).await.json();
    panic!("the run did not reach {status}: {view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_is_started_shown_and_listed() {
    let server = TestServer::open().await;
    let new = json!({ "flow": one_node_flow("say hello to {{input}}"), "input": "ana", "id": "greet" });
    let started = server.post("ana", "/v1/flows", &new).await;
    assert_eq!((started.status, started.json()["run"].as_str()), (202, Some("flow-greet")));
    let view = wait_for(&server, "flow-greet", "completed").await;
    let work = &view["nodes"][1];
    assert_eq!((work["status"].as_str(), work["visits"].as_u64()), (Some("done"), Some(1)), "{view}");
    assert_eq!(view["edges"][0], json!({"from":"input","to":"work","type":"forward","status":"completed"}));
    assert_eq!(view["results"][0]["text"], "Hello, you.");
    let session = work["session"].as_str().unwrap();
    let context = server.get("ana", &format!("/v1/sessions/{session}/context")).await.json();
    let has_prompt =
        context["messages"].as_array().unwrap().iter().any(|message| message["text"] == "say hello to ana");
    assert!(has_prompt, "{context}");
    let runs = server.get("ana", "/v1/flows").await.json();
    assert_eq!((runs["items"].as_array().unwrap().len(), runs["items"][0]["done"].as_u64()), (1, Some(1)));
    assert_eq!(server.get("bob", "/v1/flows").await.json()["items"], json!([]));
    let again = server.post("ana", "/v1/flows", &new).await;
    assert_eq!((again.status, again.code().as_str()), (409, "session.exists"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_flow_is_rejected_before_anything_runs() {
    let server = TestServer::open().await;
    let mut flow = one_node_flow("hello");
    flow["workflow"]["nodes"][1]["agent_ref"] = json!("stranger");
    flow["workflow"]["agents"] =
        json!([{ "id": "stranger", "allowed_commands": ["*"], "approvals": "auto" }]);
    flow["workflow"]["nodes"][1]["required_readings"] = json!(["charter"]);
    let refused = server.post("ana", "/v1/flows", &json!({ "flow": flow })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "flow.invalid"));
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("there is no agent stranger") && detail.contains("charter is missing"),
        "{detail}"
    );
    let mut unknown = one_node_flow("hello");
    unknown["workflow"]["nodes"][1]["agent"] = json!("default");
    let refused = server.post("ana", "/v1/flows", &json!({ "flow": unknown })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "workflow.invalid"));
    assert_eq!(server.get("ana", "/v1/sessions").await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_resumes_the_run() {
    let server = TestServer::open().await;
    let new = json!({ "flow": one_node_flow("please ask"), "id": "asks" });
    server.post("ana", "/v1/flows", &new).await;
    let approval = wait_for_approval(&server, "flow-asks__at.work").await;
    let view = wait_for(&server, "flow-asks", "waiting").await;
    assert_eq!(view["approvals"][0]["approval"], approval.as_str());
    let answer = json!({ "answer": "approved", "reason": "yes" });
    assert_eq!(server.post("ana", &format!("/v1/approvals/{approval}"), &answer).await.status, 202);
    wait_for(&server, "flow-asks", "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_flow_can_be_cancelled_once() {
    let server = TestServer::open().await;
    server.post("ana", "/v1/flows", &json!({ "flow": one_node_flow("please hang"), "id": "hangs" })).await;
    wait_for(&server, "flow-hangs", "open").await;
    assert_eq!(server.post("ana", "/v1/flows/flow-hangs/cancel", &json!({})).await.status, 202);
    let view = wait_for(&server, "flow-hangs", "cancelled").await;
    assert_eq!(view["nodes"][1]["code"], "turn.cancelled", "{view}");
    let again = server.post("ana", "/v1/flows/flow-hangs/cancel", &json!({})).await;
    assert_eq!((again.status, again.code().as_str()), (409, "flow.ended"));
    assert_eq!(server.post("ana", "/v1/flows/flow-hangs/resume", &json!({})).await.status, 202);
    assert_eq!(server.get("ana", "/v1/flows/flow-hangs").await.json()["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_part_of_the_request_and_missing_ones_are_named() {
    let server = TestServer::open().await;
    let flow = one_node_flow("say hello to {{ctx.friend}}");
    let refused = server.post("ana", "/v1/flows", &json!({ "flow": flow })).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "flow.invalid"));
    assert!(refused.json()["detail"].as_str().unwrap().contains("{{ctx.friend}}"), "{}", refused.json());
    let new = json!({ "flow": flow, "variables": { "friend": "rex" }, "id": "named" });
    assert_eq!(server.post("ana", "/v1/flows", &new).await.status, 202);
    let view = wait_for(&server, "flow-named", "completed").await;
    let session = view["nodes"][1]["session"].as_str().unwrap();
    let context = server.get("ana", &format!("/v1/sessions/{session}/context")).await.json();
    let texts: Vec<&str> =
        context["messages"].as_array().unwrap().iter().filter_map(|m| m["text"].as_str()).collect();
    assert!(texts.contains(&"say hello to rex"), "{texts:?}");
    let export = |format: &str| json!({ "format": format });
    let path = format!("/v1/sessions/{session}/export");
    let role = server.post("ana", &path, &export("role-files")).await.json();
    assert_eq!((&role["roleName"], &role["currentNodeId"]), (&json!("work"), &json!("work")), "{role}");
    let feed = server.post("ana", &path, &export("role-feed")).await.json();
    let items = server.get("ana", &format!("/v1/sessions/{session}/feed")).await.json();
    assert_eq!(feed, items["items"], "the same items as in the feed");
}
