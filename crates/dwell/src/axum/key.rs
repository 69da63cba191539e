//! The idempotency key of a request.

use super::{FieldProblem, Problem};
use ::axum::{
    extract::FromRequestParts,
    http::{HeaderMap, request::Parts},
};
use dwell_core::check_id;

/// The id that a client has chosen for its job, from the header `Idempotency-Key` or `Dwell-Id`: the same request under it
/// is one job, however often it is sent.
///
/// ```
/// use axum::{extract::FromRequestParts, http::Request};
/// use dwell::axum::IdempotencyKey;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let request = Request::builder().header("idempotency-key", "report-12").body(()).unwrap();
/// let (mut parts, ()) = request.into_parts();
/// let IdempotencyKey(key) = IdempotencyKey::from_request_parts(&mut parts, &()).await.unwrap();
/// assert_eq!(key.as_deref(), Some("report-12"));
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdempotencyKey(pub Option<String>);

impl IdempotencyKey {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let given =
            ["dwell-id", "idempotency-key"].into_iter().find_map(|name| Some((name, headers.get(name)?)));
        let Some((name, value)) = given else { return Ok(Self(None)) };
        let invalid =
            |detail: String| Problem::invalid(vec![FieldProblem { pointer: format!("#{name}"), detail }]);
        let text = value.to_str().map_err(|_| invalid(format!("the header `{name}` is not plain text")))?;
        // Some write it as a quoted string.
        let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        check_id(text).map_err(|error| invalid(error.to_string()))?;
        Ok(Self(Some(text.to_owned())))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::of(&parts.headers)
    }
}
