//! Custom tools. A tool that reads runs at once; a tool that acts waits for an approval.
//!
//! `cargo run -p sapwood --example own_tool`

use std::sync::{Arc, Mutex};

use sapwood::model::{Role, model_fn};
use sapwood::tool::{Replay, ToolSpec, Touch};
use sapwood::{Agent, ApprovalAnswer, Part, Sapwood};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), sapwood::Error> {
    let shelf = Arc::new(Mutex::new(vec!["Dune".to_owned()]));
    let (reading, writing) = (shelf.clone(), shelf.clone());

    let list = ToolSpec::new("list_books", "All books on the shelf.", &json!({"type": "object"}))
        .with_touch(Touch::Reads)
        .with_replay(Replay::Safe);
    let title = json!({"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]});
    let add = ToolSpec::new("add_book", "Puts a book on the shelf.", &title); // acts, and is never repeated

    // A model that calls the tool whose name the user sends, and then repeats its result.
    let librarian = model_fn(|request| async move {
        let text = request.last_text();
        let calls = request.messages.len(); // unique within the session
        Ok(vec![match request.last_role() {
            Some(Role::Tool) => Part::text(text),
            _ => Part::tool_call(format!("call-{calls}"), text, json!({"title": "Solaris"})),
        }])
    });

    let sapwood = Sapwood::builder("memory:")?
        .model("librarian", librarian)
        .tool(list, move |_| {
            let books = reading.lock().expect("no thread panics with the lock").join(", ");
            async move { books }
        })
        .tool(add, move |input| {
            let books = writing.clone();
            async move {
                let title =
                    input["title"].as_str().filter(|title| !title.is_empty()).ok_or("the title is empty")?;
                books.lock().expect("no thread panics with the lock").push(title.to_owned());
                Ok::<_, &str>(format!("added {title}"))
            }
        })
        .build()?;
    let agent = Agent::default().with_model("librarian").with_tool("list_books").with_tool("add_book");
    let session = sapwood.start(agent).await?;

    println!("{}", sapwood.send(&session, "list_books").await?.text);
    let report = sapwood.send(&session, "add_book").await?;
    println!("waiting: {}", report.waiting[0].question);
    sapwood.answer(&report.waiting[0].approval, ApprovalAnswer::Approved, None).await?;
    sapwood.resume(&session).await?;
    assert_eq!(sapwood.send(&session, "list_books").await?.text, "Dune, Solaris");
    Ok(())
}
