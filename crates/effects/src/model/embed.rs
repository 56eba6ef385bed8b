//! Embeddings through OpenAI's API, which many other servers also implement, and through Ollama's API. Embedding models
//! use the same names, keys and HTTP clients as chat models.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::AUTHORIZATION;
use sapwood_core::port::embedder::{EMBED_TEXTS_MAX, Embedder, EmbedderError};
use sapwood_core::port::memory::EMBEDDING_NUMBERS_MAX;
use serde::Deserialize;
use serde_json::json;

use super::settings::ProviderKind;
use super::{Models, Route};

/// Maximum response size: the maximum number of texts, each with the longest vector, as JSON.
const RESPONSE_BYTES_MAX: usize = EMBED_TEXTS_MAX * EMBEDDING_NUMBERS_MAX * 32;
/// Timeout for a provider's response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// An embedder that calls one of the configured models.
pub struct ModelEmbedder {
    models: Arc<Models>,
    /// `PROVIDER/NAME`.
    name: String,
}

/// OpenAI's response. Each embedding has an index, because the order is not guaranteed.
#[derive(Deserialize)]
struct OpenaiResponse {
    data: Vec<OpenaiEmbedding>,
}

#[derive(Deserialize)]
struct OpenaiEmbedding {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct OllamaResponse {
    embeddings: Vec<Vec<f32>>,
}

impl ModelEmbedder {
    pub fn new(models: Arc<Models>, name: impl Into<String>) -> Self {
        Self { models, name: name.into() }
    }

    fn fail(&self, why: impl std::fmt::Display) -> EmbedderError {
        EmbedderError(format!("{}: {why}", self.name))
    }

    async fn request_vectors(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedderError> {
        let route = self.models.route(&self.name).map_err(|error| EmbedderError(error.to_string()))?;
        let Route::Provider { provider, model, .. } = route else {
            return Err(self.fail("this model does not support embeddings"));
        };
        let endpoint = &provider.endpoint;
        let path = match endpoint.kind {
            ProviderKind::Openai | ProviderKind::OpenaiCompatible => "/embeddings",
            ProviderKind::Ollama => "/api/embed",
            ProviderKind::Anthropic | ProviderKind::Gemini => {
                return Err(self.fail("only OpenAI-compatible providers and Ollama support embeddings"));
            }
        };
        let key =
            self.models.find_key(provider, &self.name).map_err(|error| EmbedderError(error.to_string()))?;
        let client = provider.client(&self.name).map_err(|error| EmbedderError(error.to_string()))?;
        let mut request = client.post(format!("{}{path}", endpoint.base_url)).timeout(REQUEST_TIMEOUT);
        if let Some(header) = key.as_ref().and_then(|key| key.header("Bearer ")) {
            request = request.header(AUTHORIZATION, header);
        }
        let scrub = |text: String| key.as_ref().map_or_else(|| text.clone(), |key| key.scrub(&text));
        // The URL may contain a password, so errors omit it.
        let transport_error = |error: reqwest::Error| self.fail(scrub(error.without_url().to_string()));
        let response =
            request.json(&json!({"model": model, "input": texts})).send().await.map_err(transport_error)?;
        let status = response.status();
        let body = read_body(response).await.map_err(|why| self.fail(scrub(why)))?;
        if !status.is_success() {
            let excerpt: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            return Err(self.fail(scrub(format!("the provider returned {status}: {excerpt}"))));
        }
        self.parse(endpoint.kind, &body)
    }

    fn parse(&self, kind: ProviderKind, body: &[u8]) -> Result<Vec<Vec<f32>>, EmbedderError> {
        let unreadable =
            |error: serde_json::Error| self.fail(format!("failed to parse the response: {error}"));
        if kind == ProviderKind::Ollama {
            return Ok(serde_json::from_slice::<OllamaResponse>(body).map_err(unreadable)?.embeddings);
        }
        let mut rows = serde_json::from_slice::<OpenaiResponse>(body).map_err(unreadable)?.data;
        rows.sort_by_key(|row| row.index);
        Ok(rows.into_iter().map(|row| row.embedding).collect())
    }
}

async fn read_body(mut response: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| error.without_url().to_string())? {
        if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(format!("the response exceeds {RESPONSE_BYTES_MAX} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[async_trait]
impl Embedder for ModelEmbedder {
    async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedderError> {
        if texts.len() > EMBED_TEXTS_MAX {
            return Err(
                self.fail(format!("{} texts exceed the limit of {EMBED_TEXTS_MAX} per request", texts.len()))
            );
        }
        let vectors = self.request_vectors(texts).await?;
        let length = vectors.first().map_or(0, Vec::len);
        let is_valid = vectors.len() == texts.len()
            && (1..=EMBEDDING_NUMBERS_MAX).contains(&length)
            && vectors.iter().all(|vector| vector.len() == length);
        match is_valid {
            true => Ok(vectors),
            false => Err(self.fail("the response must have one vector of equal length per text")),
        }
    }

    fn model(&self) -> &str {
        &self.name
    }
}
