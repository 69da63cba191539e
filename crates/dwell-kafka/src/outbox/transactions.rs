//! Transactions: records and offsets that become visible together or not at all.

use super::{
    Native, Outbox, State, lock,
    sending::{Batch, Report, Reported, Unsent, of_its_batch, refused},
};
use crate::{fault::fault, group::Offsets, record::Outgoing};
use dwell_core::{Error, ErrorKind, Result};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    producer::Producer as _,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Limit of one transaction call. A call that times out is retried.
pub(super) const CALL: Duration = Duration::from_secs(5);

/// Number of attempts of one call. A producer that has removed its last broker never succeeds.
const CALLS: u32 = 12;

/// Number of transactional ids that this process has used. None is used twice, not even by a relay
/// that restarts: a broker may still be working on a transaction under the former id.
static NAMES: AtomicUsize = AtomicUsize::new(0);

/// Settings of an outbox that sends only within transactions.
#[derive(Clone, Debug)]
pub(crate) struct Transactions {
    /// Prefix of the transactional id, which no other producer has.
    pub(crate) id: String,
    /// After this time the broker aborts a transaction whose producer is gone.
    pub(crate) timeout: Duration,
}

/// Outcome of a transaction, where it is known.
pub(crate) enum Transaction {
    /// All records and offsets are stored.
    Committed,
    /// Nothing is stored. Some records were refused, for these reasons; the others have none.
    Refused(Vec<Option<Error>>),
    /// Nothing is stored, for a reason that lies in no record.
    Undone(Error),
}

impl Outbox {
    /// Sends records and commits offsets in one transaction. Transactions do not overlap. An error
    /// means that the outcome is unknown: join the group again to read it from the broker.
    pub(crate) async fn transact<R: AsRef<Outgoing> + Sync>(
        &self,
        records: &[R],
        offsets: impl FnOnce() -> Option<Offsets> + Send + 'static,
    ) -> Result<Transaction> {
        let mut outbox = self;
        let native = loop {
            let native = match outbox.begin().await {
                Ok(native) => native,
                Err(error) => return Ok(Transaction::Undone(error)),
            };
            let reports = outbox.report(&native, records).await;
            if reports.iter().all(Result::is_ok) {
                break native;
            }
            outbox.give_up(native, &reports).await;
            match &outbox.alone {
                // Send each record in a batch of its own, to find out which of them is too large.
                Some(alone) if reports.iter().any(|report| of_its_batch(report).is_some()) => outbox = alone,
                _ => return Ok(Transaction::Refused(reasons(reports, records))),
            }
        };
        let (of, closing) = (native.clone(), self.closing.clone());
        let ended = on_a_thread(move || {
            let Some(Offsets { marks, member }) = offsets() else {
                return Ended::Undone(Error::new(
                    ErrorKind::Stale,
                    "another relay has some of these records",
                ));
            };
            let added = patiently(&closing, || of.send_offsets_to_transaction(&marks, &member, CALL));
            match added.and_then(|()| patiently(&closing, || of.commit_transaction(CALL))) {
                Ok(()) => Ended::Committed,
                Err(error) if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) => {
                    let text = "the broker limits the metadata of an offset too much for a relay with transactions: \
                                set its `offset.metadata.max.bytes` to at least 4096";
                    Ended::Refused(Error::new(ErrorKind::Config, text).with_source(error))
                }
                Err(error) if requires_abort(&error) => Ended::Undone(fault("commit a transaction", error)),
                Err(error) => Ended::Unknown(fault("commit a transaction", error)),
            }
        });
        match ended.await {
            Ended::Committed => Ok(Transaction::Committed),
            Ended::Undone(error) => {
                outbox.abort(native).await;
                Ok(Transaction::Undone(error))
            }
            Ended::Refused(error) => {
                outbox.abort(native).await;
                Err(error)
            }
            Ended::Unknown(error) => Err(error),
        }
    }

    /// Hands over the records and returns the outcome of each.
    async fn report<R: AsRef<Outgoing>>(&self, native: &Native, records: &[R]) -> Vec<Reported> {
        let batch = Batch::new();
        for (index, record) in records.iter().enumerate() {
            let report = Box::new(Report { batch: batch.clone(), index });
            self.hand_over(native, record.as_ref().native(report)).await;
        }
        batch.wait(records.len(), native.ended()).await
    }

    /// Begins a transaction; opens the producer if necessary.
    async fn begin(&self) -> Result<Arc<Native>> {
        let native = self.known().await?;
        let of = native.clone();
        let begun = on_a_thread(move || of.begin_transaction()).await;
        begun.map(|()| native.clone()).map_err(|error| self.not_begun(&native, error))
    }

    /// Registers the transactional id at the broker, once. An error that is not retryable is
    /// permanent.
    pub(crate) async fn prepare_transactions(&self) -> Result<()> {
        self.known().await.map(drop)
    }

    async fn known(&self) -> Result<Arc<Native>> {
        let is_new = matches!(*lock(&self.state), State::Unopened);
        let native = self.native()?;
        if is_new {
            let (of, closing) = (native.clone(), self.closing.clone());
            let known = on_a_thread(move || patiently(&closing, || of.init_transactions(CALL))).await;
            known.map_err(|error| self.not_begun(&native, error))?;
        }
        Ok(native)
    }

    fn not_begun(&self, native: &Arc<Native>, error: KafkaError) -> Error {
        self.renew(native);
        fault("begin a transaction", error)
    }

    /// Ends a transaction after some of its records were not sent.
    async fn give_up(&self, native: Arc<Native>, reports: &[Reported]) {
        let is_away = |report: &Reported| match report {
            Err(Unsent::Refused(error)) => is_timeout(error),
            Err(Unsent::Unheard) => true,
            _ => false,
        };
        if reports.iter().any(is_away) {
            self.rename(native).await;
        } else {
            self.abort(native).await;
        }
    }

    /// Aborts a transaction. A producer that cannot do so is replaced, and the broker aborts its
    /// transaction later.
    async fn abort(&self, native: Arc<Native>) {
        let (of, closing) = (native.clone(), self.closing.clone());
        let aborted = on_a_thread(move || patiently(&closing, || of.abort_transaction(CALL)));
        if let Err(error) = aborted.await {
            tracing::warn!(%error, "transaction could not be aborted; replacing the producer");
            self.renew(&native);
        }
    }

    /// Aborts a transaction and continues with another transactional id. A transaction ends only
    /// when every partition that it wrote to has been notified, and its producer cannot begin
    /// another one before. While one of the partitions is unavailable, that would delay all other
    /// records. If the abort does not arrive, the broker aborts the transaction after its timeout:
    /// it contains no offsets yet and is never committed.
    async fn rename(&self, native: Arc<Native>) {
        let of = native.clone();
        if let Err(error) = on_a_thread(move || of.abort_transaction(CALL)).await {
            tracing::warn!(%error, "transaction could not be aborted; replacing the producer");
        }
        self.name.store(new_name(), Ordering::SeqCst);
        self.renew(&native);
    }
}

/// Outcome of the attempt to commit a transaction.
enum Ended {
    Committed,
    Undone(Error),
    /// Nothing is stored, and retrying cannot help.
    Refused(Error),
    Unknown(Error),
}

pub(super) fn new_name() -> usize {
    NAMES.fetch_add(1, Ordering::SeqCst)
}

/// Runs a blocking call of librdkafka.
async fn on_a_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down, and nothing awaits this any more.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Retries a call while librdkafka reports that this may help and the outbox is not closing: a
/// transaction that librdkafka has begun to end must be ended by the same call.
fn patiently(closing: &AtomicBool, call: impl Fn() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    let mut calls = 1;
    loop {
        match call() {
            Err(KafkaError::Transaction(error))
                if error.is_retriable() && calls < CALLS && !closing.load(Ordering::SeqCst) =>
            {
                calls += 1;
                tracing::warn!(%error, "transaction call timed out; retrying");
            }
            answer => return answer,
        }
    }
}

/// Returns the reason of each record that was refused for itself.
fn reasons<R: AsRef<Outgoing>>(reports: Vec<Reported>, records: &[R]) -> Vec<Option<Error>> {
    let reasons = reports.into_iter().zip(records).map(|(report, record)| {
        let Err(Unsent::Refused(error)) = report else { return None };
        (!is_of_the_transaction(&error)).then(|| refused(&record.as_ref().topic, error))
    });
    reasons.collect()
}

pub(super) fn is_timeout(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::MessageTimedOut)
}

fn requires_abort(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.txn_requires_abort())
}

/// Returns whether a record was not sent because of other records or the transaction as a whole.
fn is_of_the_transaction(error: &KafkaError) -> bool {
    let of_the_whole = [
        Code::PurgeQueue,
        Code::PurgeInflight,
        Code::State,
        Code::Fatal,
        Code::Fenced,
        Code::InvalidTransactionalState,
        Code::InvalidProducerEpoch,
        Code::InvalidProducerIdMapping,
        Code::ProducerFenced,
    ];
    error.rdkafka_error_code().is_none_or(|code| of_the_whole.contains(&code))
}
