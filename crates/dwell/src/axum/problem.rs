//! Errors as problem documents (RFC 9457).

use ::axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use dwell_core::{Error, ErrorKind};
use serde::Serialize;

/// An error as people and programs meet it over HTTP: `application/problem+json`, with a `code` that does not change.
///
/// ```
/// use axum::http::StatusCode;
/// use dwell::{Error, ErrorKind, axum::Problem};
///
/// // Every error of a bus is one: `?` is enough in an endpoint.
/// let problem = Problem::from(Error::new(ErrorKind::Full, "the queue is full"));
/// assert_eq!((problem.status(), problem.code()), (StatusCode::TOO_MANY_REQUESTS, "full"));
/// ```
#[derive(Clone, Debug)]
pub struct Problem(Box<Document>);

#[derive(Clone, Debug, Serialize)]
struct Document {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    detail: String,
    code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldProblem>,
    retryable: bool,
    #[serde(skip)]
    location: Option<String>,
}

/// What is wrong with one field of a request.
///
/// ```
/// use dwell::axum::{FieldProblem, Problem};
///
/// let width = FieldProblem { pointer: "/width".into(), detail: "`width` is at least 1".into() };
/// assert_eq!(Problem::invalid(vec![width]).code(), "invalid_request");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldProblem {
    /// Where it is, as a JSON pointer.
    pub pointer: String,
    /// What is wrong.
    pub detail: String,
}

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// A problem of this kind.
    ///
    /// ```
    /// use axum::{http::StatusCode, response::IntoResponse};
    /// use dwell::axum::Problem;
    ///
    /// let problem = Problem::new(StatusCode::PAYMENT_REQUIRED, "unpaid", "the last invoice is not paid");
    /// let response = problem.into_response();
    /// assert_eq!(response.status(), StatusCode::PAYMENT_REQUIRED);
    /// assert_eq!(response.headers()["content-type"], "application/problem+json");
    /// ```
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let retryable = matches!(status.as_u16(), 429 | 503 | 504 | 507);
        let detail = detail.into();
        let (kind, errors) = ("about:blank", vec![]);
        Self(Box::new(Document { kind, title, status, detail, code, errors, retryable, location: None }))
    }

    /// The request breaks a rule; each field says which.
    ///
    /// ```
    /// use axum::http::StatusCode;
    /// use dwell::axum::{FieldProblem, Problem};
    ///
    /// let wrong = |field: &str| FieldProblem { pointer: format!("/{field}"), detail: format!("`{field}` is missing") };
    /// let problem = Problem::invalid(vec![wrong("width"), wrong("height")]);
    /// assert_eq!(problem.status(), StatusCode::BAD_REQUEST);
    /// ```
    pub fn invalid(errors: Vec<FieldProblem>) -> Self {
        let detail = match &errors[..] {
            [one] => one.detail.clone(),
            several => format!("{} fields of the request cannot be taken", several.len()),
        };
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "invalid_request", detail);
        problem.0.errors = errors;
        problem
    }

    /// There is no such job.
    pub(super) fn no_job(id: &str) -> Self {
        let shown: String = id.chars().take(60).flat_map(char::escape_default).collect();
        let detail = format!(
            "there is no job `{shown}`: it was never submitted, or is over for longer than jobs are kept"
        );
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// With where the thing is that is in the way.
    #[must_use]
    pub(super) fn at(mut self, location: Option<String>) -> Self {
        self.0.location = location;
        self
    }

    /// The word that programs tell it by.
    ///
    /// ```
    /// use dwell::{Error, ErrorKind, axum::Problem};
    ///
    /// let problem = Problem::from(Error::new(ErrorKind::TooLarge, "a picture of 40 MB"));
    /// assert_eq!(problem.code(), "too_large");
    /// ```
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// The status of its response.
    ///
    /// ```
    /// use axum::http::StatusCode;
    /// use dwell::{Error, ErrorKind, axum::Problem};
    ///
    /// let problem = Problem::from(Error::new(ErrorKind::NotFound, "there is no such picture"));
    /// assert_eq!(problem.status(), StatusCode::NOT_FOUND);
    /// ```
    pub fn status(&self) -> StatusCode {
        self.0.status
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (status, code) = match error.kind() {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_request"),
            ErrorKind::Denied => (StatusCode::FORBIDDEN, "forbidden"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
            ErrorKind::Stale => (StatusCode::CONFLICT, "stale_receipt"),
            ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            ErrorKind::Unsupported => (StatusCode::UNPROCESSABLE_ENTITY, "unsupported"),
            ErrorKind::Full => (StatusCode::TOO_MANY_REQUESTS, "full"),
            ErrorKind::Unavailable | ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            ErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            ErrorKind::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let mut problem = Self::new(status, code, error.to_string());
        problem.0.retryable = error.is_retryable();
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self(document) = self;
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = document.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(document.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(location) = document.location.and_then(|location| HeaderValue::try_from(location).ok()) {
            headers.insert(header::LOCATION, location);
        }
        response
    }
}
