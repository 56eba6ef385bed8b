//! Routes for questions across all sessions, and for answer links. The page of a link needs no key: its token is signed.
//! Opening the page never answers, because mail and chat programs open links to preview them.

use axum::extract::{Path, Query, Request, State as Shared};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sapwood::core::entry::ApprovalAnswer;
use sapwood::core::port::links::LinkClaim;
use sapwood::engine::turn::{APPROVALS_PAGE_MAX, LinkOptions, PendingApproval};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ListPage, rows};
use crate::auth::Caller;
use crate::extract::{OptionalBody, Params, PathParams, read_body};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::{Inner, State};
use crate::wire;

/// The page of an answer link.
const ANSWER: &str = "/answer/{token}";
/// Maximum size of the submitted form.
const FORM_BYTES_MAX: usize = 16 << 10;
/// The page has no scripts, styles or images, and sends its form only to this server.
const POLICY: &str =
    "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; sandbox allow-forms";

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_all_approvals))
        .routes(routes!(create_answer_link))
        .routes(routes!(show_answer_page, submit_answer))
}

/// List the pending approvals that you may answer, across all sessions. `limit` counts sessions; a page can be empty and
/// still have a `next`.
#[utoipa::path(get, path = "/v1/approvals", tag = "turns", params(wire::ApprovalQuery),
    responses((status = 200, body = wire::ApprovalPage)))]
async fn list_all_approvals(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::ApprovalQuery>,
) -> Result<Json<ListPage<PendingApproval>>> {
    let limit = rows(query.limit, APPROVALS_PAGE_MAX as u32)?;
    let page = state.engine.approvals().list(&caller.scope, limit, query.cursor).await?;
    for pending in &page.items {
        state.audit_read(&caller, &pending.session).await?;
    }
    Ok(Json(ListPage::new(page.items, page.next)))
}

/// Create a link that lets a person without a key answer this approval once, with your rights.
#[utoipa::path(post, path = "/v1/approvals/{approval}/link", tag = "turns", params(("approval" = String, Path)),
    request_body = Option<wire::NewAnswerLink>, responses((status = 201, body = wire::AnswerLink)))]
async fn create_answer_link(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(approval): PathParams<String>,
    OptionalBody(new): OptionalBody<wire::NewAnswerLink>,
) -> Result<(StatusCode, Json<wire::AnswerLink>)> {
    let answers = new.answers.iter().map(|answer| (*answer).into()).collect();
    let options = LinkOptions { expires_in_s: new.expires_in_s, answers };
    let link = state.engine.approvals().create_link(&caller.scope, &approval, options).await?;
    let expires_at = link.expires_at.0;
    Ok((StatusCode::CREATED, Json(wire::AnswerLink { approval: link.approval, url: link.url, expires_at })))
}

/// Show the question of an answer link. Never answers it.
#[utoipa::path(get, path = ANSWER, tag = "turns", params(("token" = String, Path)),
    responses((status = 200, body = String, content_type = "text/html"),
        (status = 404, body = String, content_type = "text/html", description = "The link was changed, has expired or was used")))]
async fn show_answer_page(Shared(state): Shared<State>, Path(token): Path<String>) -> Response {
    match state.engine.approvals().open_link(&token).await {
        Ok((pending, claim)) => page(StatusCode::OK, "A question for you", &question_html(&pending, &claim)),
        Err(error) => failure_page(&error.into()),
    }
}

/// Answer the question of an answer link. The first answer counts.
#[utoipa::path(post, path = ANSWER, tag = "turns", params(("token" = String, Path)),
    request_body(content = wire::AnswerForm, content_type = "application/x-www-form-urlencoded"),
    responses((status = 200, body = String, content_type = "text/html"),
        (status = 400, body = String, content_type = "text/html", description = "The form has no valid answer"),
        (status = 404, body = String, content_type = "text/html", description = "The link was changed, has expired or was used")))]
async fn submit_answer(
    Shared(state): Shared<State>,
    Path(token): Path<String>,
    request: Request,
) -> Response {
    match answer(&state, &token, request).await {
        Ok(answer) => {
            let what = if answer == ApprovalAnswer::Approved { "Approved" } else { "Denied" };
            page(
                StatusCode::OK,
                what,
                &format!("<p>Your answer was recorded: {what}. You can close this page.</p>"),
            )
        }
        Err(problem) => failure_page(&problem),
    }
}

async fn answer(state: &State, token: &str, request: Request) -> Result<ApprovalAnswer> {
    let form = read_form(request).await?;
    let answer = ApprovalAnswer::from(form.answer);
    let reason = form.reason.filter(|reason| !reason.trim().is_empty());
    let (scope, session) = state.engine.approvals().answer_link(token, answer, reason).await?;
    Inner::spawn_resume(state, scope, session);
    Ok(answer)
}

async fn read_form(request: Request) -> Result<wire::AnswerForm> {
    let invalid = || Problem::invalid("the form must have an answer: approved or denied");
    let body = read_body(request, "the form", FORM_BYTES_MAX).await?;
    // A form has the same encoding as a query.
    let query = std::str::from_utf8(&body).map_err(|_| invalid())?;
    let query: PathAndQuery = format!("/?{query}").parse().map_err(|_| invalid())?;
    let form = Query::<wire::AnswerForm>::try_from_uri(&Uri::from(query)).map_err(|_| invalid())?;
    Ok(form.0)
}

fn question_html(pending: &PendingApproval, claim: &LinkClaim) -> String {
    let mut html = format!("<p>{}</p>", escape(&pending.question));
    if let Some(call) = &pending.call {
        let input = serde_json::to_string_pretty(&call.input.to_value()).unwrap_or_default();
        html += &format!("<p>Tool: <code>{}</code></p><pre>{}</pre>", escape(&call.name), escape(&input));
    }
    html += &format!("<p>Session: <code>{}</code></p>", escape(pending.session.as_str()));
    html += "<form method=\"post\"><p><label>Reason, or the answer to the question:<br>";
    html += "<textarea name=\"reason\" rows=\"4\" cols=\"60\" maxlength=\"2000\"></textarea></label></p><p>";
    for (answer, value, label) in
        [(ApprovalAnswer::Approved, "approved", "Approve"), (ApprovalAnswer::Denied, "denied", "Deny")]
    {
        if claim.answers.contains(&answer) {
            html += &format!("<button name=\"answer\" value=\"{value}\">{label}</button> ");
        }
    }
    html + "</p></form>"
}

/// A page for a problem. An invalid, an expired and a used link give the same page.
fn failure_page(problem: &Problem) -> Response {
    let html = match problem.code {
        "approval.link_not_found" => {
            "<p>This link is not valid: it was changed, has expired, or its question was answered.</p>"
                .to_owned()
        }
        _ => format!("<p>{}</p>", escape(&problem.detail)),
    };
    page(problem.status(), "This did not work", &html)
}

fn page(status: StatusCode, title: &str, html: &str) -> Response {
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"robots\" content=\"noindex\">\
         <title>{title} · Sapwood</title><h1>{title}</h1>{html}</html>"
    );
    let mut headers = HeaderMap::new();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, "text/html; charset=utf-8");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::CACHE_CONTROL, "no-store");
    set(header::REFERRER_POLICY, "no-referrer");
    (status, headers, text).into_response()
}

/// Escape a text for HTML. Questions and inputs come from a model and are not trusted.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use sapwood::core::content::{Json as JsonText, ToolCall};
    use sapwood::core::{Principal, TenantId, TimestampMs};

    use super::*;

    #[test]
    fn text_of_the_model_is_escaped_and_only_allowed_answers_are_offered() {
        let call = ToolCall {
            call_id: "c1".to_owned(),
            name: "write<file".to_owned(),
            input: JsonText::parse(r#"{"text":"</pre><script>alert('x')</script>"}"#).unwrap(),
        };
        let pending = PendingApproval {
            approval: "s~1.1".to_owned(),
            session: "s".parse().unwrap(),
            question: "Run \"this\" & <img src=x onerror=alert(1)>?".to_owned(),
            kind: "tool".to_owned(),
            why: None,
            call: Some(call),
            asked_at: TimestampMs(1),
            deadlines: Default::default(),
            escalated_at: None,
        };
        let claim = LinkClaim {
            tenant: TenantId::local(),
            approval: pending.approval.clone(),
            by: Principal::System,
            operator: true,
            expires_at: TimestampMs(2),
            answers: vec![ApprovalAnswer::Denied],
        };
        let html = question_html(&pending, &claim);
        for bad in ["<img", "<script", "</pre><script", "write<file", "\"this\"", "'x'"] {
            assert!(!html.contains(bad), "{bad} in {html}");
        }
        assert!(html.contains("value=\"denied\"") && !html.contains("value=\"approved\""), "{html}");
    }
}
