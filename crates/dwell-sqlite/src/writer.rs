//! The writer thread, which runs all jobs submitted meanwhile in one transaction, so that a
//! thousand callers share one disk sync.
//!
//! Every call is a job that can be run again. If a transaction fails, its jobs are run again one by
//! one, and only the failing one is refused. A caller is answered only after the commit. A virtual
//! clock does not advance while a job is queued or running.

use crate::{
    answers::Answers,
    fault::Sql,
    job::{Task, Weight},
    orders::{Order, Orders},
    readers::Gate,
    settings::SqliteSettings,
    signals::Signals,
    tx::Tx,
    worker::Worker,
};
use dwell_core::{Clock, Error, ErrorKind, Result, Seams};
use rusqlite::Connection;
use std::{
    sync::{
        Arc, PoisonError, RwLock,
        mpsc::{self, Sender},
    },
    thread,
};
use tokio::sync::oneshot;

/// Handle to the writer thread.
pub(crate) struct Writer {
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    /// `None` after `close`.
    queue: RwLock<Option<Sender<Order>>>,
    ended: RwLock<Option<oneshot::Receiver<()>>>,
}

impl Writer {
    pub(crate) fn start(
        connection: Connection,
        settings: Arc<SqliteSettings>,
        seams: &Seams,
        signals: Arc<Signals>,
        gate: Gate,
    ) -> Result<Self> {
        let name: Arc<str> = settings.location.to_string().into();
        let clock = seams.clock.clone();
        let no_thread = |error| {
            Error::new(ErrorKind::Unavailable, format!("could not start the writer thread of `{name}`"))
                .with_source(error)
        };
        let answers = Answers::start().map_err(no_thread)?;
        let worker = Worker::new(connection, settings, seams.clone(), signals, gate, answers);
        let (queue, orders) = mpsc::channel();
        let (ends, ended) = oneshot::channel();
        let started = thread::Builder::new().name("dwell-sqlite".to_owned()).spawn(move || {
            let busy = worker.work(Orders::new(orders));
            // The worker has closed the file.
            let _ = ends.send(());
            drop(busy);
        });
        started.map_err(no_thread)?;
        Ok(Self { name, clock, queue: RwLock::new(Some(queue)), ended: RwLock::new(Some(ended)) })
    }

    /// Runs `work` within a transaction, as part of a group, and waits for the commit. `work` may
    /// run more than once; only the last run counts.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        weight: impl Into<Weight>,
        work: impl FnMut(&mut Tx<'_>) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        let answer = self.order(weight, work, |found| found)?;
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// Like [`submit`](Self::submit), for callers that cannot wait, or that must act as soon as the
    /// job is committed.
    pub(crate) fn order<T: Send + 'static, U: Send + 'static>(
        &self,
        weight: impl Into<Weight>,
        work: impl FnMut(&mut Tx<'_>) -> Sql<T> + Send + 'static,
        committed: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<U>>> {
        let (task, answered) = Task::new(weight.into(), work, committed, self.clock.busy());
        self.put(Order::Work(Box::new(task)))?;
        Ok(answered)
    }

    /// Wakes all receivers if another process has written.
    pub(crate) fn watch(&self) {
        // If the writer is closed, receivers learn that elsewhere.
        let _ = self.put(Order::Watch(self.clock.busy()));
    }

    pub(crate) async fn reopen(&self) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.put(Order::Reopen(answer, self.clock.busy()))?;
        answered.await.unwrap_or_else(|_| Err(self.closed()))
    }

    fn put(&self, order: Order) -> Result<()> {
        let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().ok_or_else(|| self.closed())?;
        queue.send(order).map_err(|_| self.closed())
    }

    /// Finishes the submitted jobs, and closes the file.
    pub(crate) async fn close(&self) {
        // If it is already closed, nothing is left to do.
        let _ = self.put(Order::Close(self.clock.busy()));
        drop(self.queue.write().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.ended.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }

    pub(crate) fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("`{}` was closed: connect again", self.name))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Sqlite, SqliteSettings, fault::Sql, file::File, tx::Tx};
    use dwell_core::{
        Address, Clock, Envelope, ErrorKind, Message, OnMissing, Result, Seams, Subscription, Transport,
        VirtualClock,
    };
    use std::{collections::BTreeSet, slice::from_ref, sync::mpsc, time::Duration};
    use tokio::sync::oneshot;

    fn file() -> File {
        File::open(SqliteSettings::memory(), Seams::system("test")).unwrap()
    }

    /// Blocks the thread within a group: jobs submitted meanwhile become part of that group.
    fn block_writer(file: &File) -> mpsc::Sender<()> {
        let (begun, is_held) = mpsc::channel::<()>();
        let (unblock, wait) = mpsc::channel::<()>();
        let held = file.writer.order(
            1,
            move |_| {
                let _ = begun.send(());
                let _ = wait.recv();
                Ok(())
            },
            |()| (),
        );
        held.unwrap();
        is_held.recv().unwrap();
        unblock
    }

    /// Takes a number, and returns the committed counter, which identifies the group.
    fn number(tx: &mut Tx<'_>) -> Sql<i64> {
        tx.next();
        tx.sql("SELECT next FROM counter")?.query_row([], |row| row.get(0))
    }

    async fn all<T>(answers: Vec<oneshot::Receiver<Result<T>>>) -> Vec<Result<T>> {
        let mut all = Vec::new();
        for answer in answers {
            all.push(answer.await.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn thousand_callers_share_one_commit() {
        let file = file();
        let unblock = block_writer(&file);
        let asked: Vec<_> = (0..1000).map(|_| file.writer.order(1, number, |of| of).unwrap()).collect();
        drop(unblock);
        let groups: BTreeSet<_> = all(asked).await.into_iter().map(Result::unwrap).collect();
        assert!(groups.len() <= 2, "{groups:?}");
    }

    #[tokio::test]
    async fn failing_or_panicking_job_fails_alone() {
        let file = file();
        let unblock = block_writer(&file);
        let mut asked = Vec::new();
        for n in 0..10 {
            let job = move |tx: &mut Tx<'_>| match n {
                3 => tx.sql("INSERT INTO counter VALUES (1, 1, 1)")?.execute([]).map(|_| 0),
                6 => panic!("planned"),
                _ => number(tx),
            };
            asked.push(file.writer.order(1, job, |of| of).unwrap());
        }
        drop(unblock);
        let failed: Vec<_> =
            all(asked).await.iter().enumerate().filter(|(_, done)| done.is_err()).map(|(n, _)| n).collect();
        assert_eq!(failed, [3, 6]);
        let before = file.write(1, number).await.unwrap();
        assert_eq!(file.write(1, number).await.unwrap(), before + 1, "the failed jobs consume no numbers");
    }

    #[tokio::test]
    async fn consumer_of_a_failed_transaction_is_not_registered() {
        let file = file();
        let failed = file.write(1, |tx| {
            tx.opened(7, 1);
            tx.sql("INSERT INTO counter VALUES (1, 1, 1)")?.execute([])
        });
        assert!(failed.await.is_err());
        let opened = file.write(1, |tx| {
            tx.opened(8, 1);
            Ok(())
        });
        opened.await.unwrap();
        let ours =
            file.write(1, |tx| Ok(tx.own.consumers.keys().copied().collect::<Vec<_>>())).await.unwrap();
        assert_eq!(ours, [8]);
    }

    #[tokio::test]
    async fn clock_change_during_a_group_keeps_lease_durations() {
        const LEASE: Duration = Duration::from_secs(30);
        for by in [3_600_000, -3_600_000] {
            let clock = VirtualClock::new();
            let seams = Seams::virtual_time(clock.clone(), 1);
            let sqlite = Sqlite::open(SqliteSettings::memory(), seams).unwrap();
            let mail = Subscription::new("orders", "mail");
            sqlite.provision(&[], from_ref(&mail), OnMissing::Create).await.unwrap();
            let order =
                |id: &str| Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", "42"));
            let producer = sqlite.producer().await.unwrap();
            assert!(producer.send(&[order("a"), order("b")]).await.iter().all(Result::is_ok));
            let [one, other] =
                [sqlite.consumer(mail.clone()).await.unwrap(), sqlite.consumer(mail).await.unwrap()];
            assert_eq!(one.receive(1, Duration::ZERO, Some(LEASE)).await.unwrap().len(), 1);

            let file = sqlite.0.file();
            let unblock = block_writer(file);
            clock.step_wall(by);
            let asks = other.clone();
            let found =
                tokio::spawn(async move { asks.receive(10, Duration::ZERO, Some(LEASE)).await.unwrap() });
            // Let the task run until it has submitted its job.
            tokio::task::yield_now().await;
            drop(unblock);
            assert_eq!(found.await.unwrap().len(), 1, "{by}: the leased message stays leased");

            let ends = |tx: &mut Tx<'_>| -> Sql<Vec<i64>> {
                let mut ends = tx.sql("SELECT lease_until FROM message WHERE phase = 3 ORDER BY number")?;
                ends.query_map([], |row| row.get(0))?.collect()
            };
            let until = clock.now().after(LEASE).0;
            assert_eq!(file.write(1, ends).await.unwrap(), [until; 2], "{by}");
        }
    }

    #[tokio::test]
    async fn jobs_before_close_finish_and_later_jobs_fail_with_closed() {
        let file = file();
        let unblock = block_writer(&file);
        let asked: Vec<_> = (0..10).map(|_| file.writer.order(1, number, |of| of).unwrap()).collect();
        drop(unblock);
        file.writer.close().await;
        assert!(all(asked).await.iter().all(Result::is_ok));
        assert_eq!(file.write(1, number).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
