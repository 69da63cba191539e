//! Records and offsets that become visible together, or not at all.

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

/// How long one call about a transaction waits before it says so; it is then made again.
pub(super) const CALL: Duration = Duration::from_secs(5);

/// How many such calls are made for one step. A producer that has lost its last broker never succeeds, and by default the broker
/// has given up the transaction by then.
const CALLS: u32 = 3;

/// How many names for transactions this process has used. None is used again, not by a relay that starts again either: a
/// broker may still be at work on what was begun under it.
static NAMES: AtomicUsize = AtomicUsize::new(0);

/// That it sends within transactions alone.
#[derive(Clone, Debug)]
pub(crate) struct Transactions {
    /// Nobody else's.
    pub(crate) id: String,
    /// When the broker gives up one whose owner is gone.
    pub(crate) timeout: Duration,
}

/// How a transaction ended, if that is known.
pub(crate) enum Transaction {
    /// All are there, and so are the offsets.
    Committed,
    /// Nothing is there: some records were refused, for these reasons; the others have none.
    Refused(Vec<Option<Error>>),
    /// Nothing is there, for a reason that lies in no record.
    Undone(Error),
}

impl Outbox {
    /// Sends these and commits these offsets: both, or neither. One at a time. An error means that nobody knows which: the
    /// group has to be joined anew, to hear it from the broker.
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
                // Which of them is too large, if any, is known when each is a batch of its own.
                Some(alone) if reports.iter().any(|report| of_its_batch(report).is_some()) => outbox = alone,
                _ => return Ok(Transaction::Refused(reasons(reports, records))),
            }
        };
        let (of, closing) = (native.clone(), self.closing.clone());
        let ended = on_a_thread(move || {
            let Some(Offsets { marks, member }) = offsets() else {
                return Ended::Undone(Error::new(ErrorKind::Stale, "some of it is another relay's by now"));
            };
            let added = patiently(&closing, || of.send_offsets_to_transaction(&marks, &member, CALL));
            match added.and_then(|()| patiently(&closing, || of.commit_transaction(CALL))) {
                Ok(()) => Ended::Committed,
                Err(error) if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) => {
                    let text = "the broker takes too little beside an offset for the relay to work within transactions: \
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

    /// What becomes of each.
    async fn report<R: AsRef<Outgoing>>(&self, native: &Native, records: &[R]) -> Vec<Reported> {
        let batch = Batch::new();
        for (index, record) in records.iter().enumerate() {
            let report = Box::new(Report { batch: batch.clone(), index });
            self.hand_over(native, record.as_ref().native(report)).await;
        }
        batch.wait(records.len(), native.ended()).await
    }

    /// Opens it if need be, and begins.
    async fn begin(&self) -> Result<Arc<Native>> {
        let native = self.known().await?;
        let of = native.clone();
        let begun = on_a_thread(move || of.begin_transaction()).await;
        begun.map(|()| native.clone()).map_err(|error| self.not_begun(&native, error))
    }

    /// Makes itself known to the broker, unless it is: an error that is not retryable will not pass.
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

    /// Ends a transaction some of whose records were not sent.
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

    /// Nothing of it has happened. A producer that cannot say so is given up, and with it what it began.
    async fn abort(&self, native: Arc<Native>) {
        let (of, closing) = (native.clone(), self.closing.clone());
        let aborted = on_a_thread(move || patiently(&closing, || of.abort_transaction(CALL)));
        if let Err(error) = aborted.await {
            tracing::warn!(%error, "a transaction was not given up in good order");
            self.renew(&native);
        }
    }

    /// A transaction is over only when every partition that it wrote to knows, and until then whoever began it begins no other.
    /// While one of them is away, that is too long for the others: they go on under another name. Should nobody hear that it is
    /// given up, the broker finds out by itself: no offsets are part of it yet, and nothing of it is ever committed.
    async fn rename(&self, native: Arc<Native>) {
        let of = native.clone();
        if let Err(error) = on_a_thread(move || of.abort_transaction(CALL)).await {
            tracing::warn!(%error, "a transaction was not given up in good order");
        }
        self.name.store(new_name(), Ordering::SeqCst);
        self.renew(&native);
    }
}

/// What is known of a transaction after the attempt to commit it.
enum Ended {
    Committed,
    Undone(Error),
    /// Nothing is there, and never will be.
    Refused(Error),
    Unknown(Error),
}

pub(super) fn new_name() -> usize {
    NAMES.fetch_add(1, Ordering::SeqCst)
}

/// A call to the library that waits.
async fn on_a_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and nobody waits for us any more.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Calls again for as long as the library says that this may help, and nobody wants to leave: what it has begun it must be
/// asked to finish.
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

/// Why each was refused, where that lies in it.
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

/// Whether a record was not sent because of the others, or of the whole.
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
