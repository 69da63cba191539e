//! Handlers of jobs: plain functions whose result is kept.

use crate::{
    Command, Failure, Pipeline,
    cx::Cx,
    handler::{Attributed, handlers},
};
use dwell_engine::Verdict;
use serde::Serialize;

/// Whatever can be given to [`Builder::job`](crate::Builder::job): an `async fn` or a blocking `fn` from a command (and then
/// what it needs: [`State`](crate::State), [`Cx`]) to a result that can be written; or a [`Pipeline`], which
/// [`Pipeline::job`] makes. `Marker` only tells these apart.
///
/// ```
/// use dwell::{jobs::IntoJob, prelude::*};
///
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "sums.add")]
/// # struct Add(u64, u64);
/// async fn asynchronous(job: Add) -> Result<u64, Failure> { Ok(job.0 + job.1) }
/// fn blocking(job: Add, cx: Cx) -> Result<u64, std::io::Error> { Ok(job.0 + job.1) }
///
/// fn kind_of<Marker, H: IntoJob<Marker>>(_: H) -> &'static str {
///     use dwell::Message;
///     H::Message::NAME
/// }
///
/// assert_eq!([kind_of(asynchronous), kind_of(blocking)], ["sums.add"; 2]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of jobs",
    note = "it is an `async fn` or a blocking `fn`: a command first, then `State<T>` or `Cx`, returning `Result<T, E>`",
    note = "`T` has serde's `Serialize`; `E` is `Failure`, or anything that `?` turns into one; its future must be `Send`"
)]
pub trait IntoJob<Marker> {
    /// What it handles.
    type Message: Command;

    /// The handler with the steps around it.
    fn into_job(self) -> Pipeline<Self::Message>;
}

/// What a handler of jobs returns: a result that is kept with the job, or why there is none.
///
/// ```
/// use dwell::{jobs::JobEnding, prelude::*};
///
/// fn is_ending<T: JobEnding>() {}
///
/// is_ending::<Result<Vec<String>, Failure>>();
/// is_ending::<Result<(), std::io::Error>>();
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler of jobs cannot return `{Self}`",
    note = "it returns `Result<T, E>` where `T` has serde's `Serialize`, and `E` is `Failure` or any error"
)]
pub trait JobEnding: Send + 'static {
    #[doc(hidden)]
    fn verdict(self, cx: &Cx) -> Verdict;
}

impl<T, E> JobEnding for Result<T, E>
where
    T: Serialize + Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    fn verdict(self, cx: &Cx) -> Verdict {
        match self {
            Ok(result) => completed(&result, cx.bus().book().max_result()).unwrap_or_else(|error| {
                // Another run would come to the same.
                Verdict::Reject(error.to_string().into())
            }),
            Err(error) => error.into().into_verdict(),
        }
    }
}

/// A result as it is kept: JSON, not larger than it may be.
pub(super) fn completed(result: &impl Serialize, max_result: usize) -> dwell_core::Result<Verdict> {
    use dwell_core::{Error, ErrorKind};
    let result = serde_json::to_vec(result).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the result of the job could not be written as JSON: {error}"))
    })?;
    if result.len() > max_result {
        let text = format!(
            "the result of the job has {} bytes, and at most {max_result} are kept: store it elsewhere and return where it \
             is, or raise `max_job_result`",
            result.len()
        );
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    Ok(Verdict::Ack { result: Some(result.into()) })
}

handlers!(IntoJob::into_job, Command, JobEnding);

impl<M: Command> IntoJob<Pipeline<M>> for Pipeline<M> {
    type Message = M;

    fn into_job(self) -> Self {
        self
    }
}

impl<F, M> IntoJob<Attributed> for F
where
    F: FnOnce() -> Pipeline<M>,
    M: Command,
{
    type Message = M;

    fn into_job(self) -> Pipeline<M> {
        self()
    }
}

impl<M: Command> Pipeline<M> {
    /// Around this handler of jobs, whose result is kept. [`Builder::job`](crate::Builder::job) takes it.
    ///
    /// ```
    /// use dwell::{Pipeline, Step, prelude::*};
    /// use std::time::Duration;
    ///
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "sums.add")]
    /// # struct Add { numbers: Vec<u64> }
    /// async fn add(job: Add) -> Result<u64, Failure> { Ok(job.numbers.iter().sum()) }
    ///
    /// let pipeline = Pipeline::job(add).step(Step::timeout(Duration::from_secs(5)));
    /// assert_eq!(pipeline.steps().len(), 1);
    /// let wiring = Bus::builder().job(pipeline);
    /// ```
    pub fn job<H, Marker>(handler: H) -> Self
    where
        H: IntoJob<Marker, Message = M>,
    {
        handler.into_job()
    }
}
