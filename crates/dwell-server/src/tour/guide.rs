//! Plays the tour: sends messages, waits, checks the monitor, and shows what happens.

use super::{
    books::Books,
    mark::Mark,
    report::{Told, What},
    screen::Screen,
    shop::Shop,
};
use dwell_core::{
    Address, Clock, Due, Envelope, Message, MessageId, OnConflict, Record, Sent, Text, Timestamp,
    format_duration,
};
use dwell_engine::{Engine, Seen, Stage};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc::UnboundedReceiver;

/// Limit of every wait. Nothing on this tour takes longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between two checks of the monitor.
const LOOK: Duration = Duration::from_millis(3);
/// Pause between scenes, for readers.
const PAUSE: Duration = Duration::from_millis(700);

/// Result of a scene. The error describes what did not go as promised.
pub(super) type Result<T, E = String> = std::result::Result<T, E>;

pub(super) struct Guide {
    pub(super) engine: Engine,
    pub(super) shop: Arc<Shop>,
    pub(super) screen: Screen,
    pub(super) books: Books,
    told: UnboundedReceiver<Told>,
}

impl Guide {
    pub(super) fn new(
        engine: Engine,
        shop: Arc<Shop>,
        screen: Screen,
        told: UnboundedReceiver<Told>,
    ) -> Self {
        Self { engine, shop, screen, books: Books::default(), told }
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.engine.seams().clock.clone()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.engine.seams().clock.now()
    }

    /// Waits on a terminal, so that people can read.
    pub(super) async fn pause(&self) {
        if self.screen.is_terminal() {
            self.clock().sleep(PAUSE).await;
        }
    }

    /// Sends a message to the subscriptions of its topic, and shows it.
    pub(super) async fn send(&mut self, parcel: Parcel<'_>) -> Result<Sent> {
        let Parcel { id, kind, body, after, places } = parcel;
        let topic: Text = places[0].topic_name().clone();
        let due = Due::After(after);
        // Computed before the send, so that the broker cannot have resolved an earlier time.
        let not_before = (!after.is_zero()).then(|| due.resolve(self.clock().moment()));
        let sent = self.post(envelope(&topic, id, kind, body, self.now()).due(due)).await?;
        self.books.sent(&id.into(), places, not_before);
        let text = match (sent.due, places) {
            (Some(due), _) => format!("sent, due in {}", ms(due.since(self.now()))),
            (None, [_]) => "sent".to_owned(),
            (None, _) => format!("sent to {} subscriptions", places.len()),
        };
        self.screen.line(Mark::Sent, &topic, id, &text);
        Ok(sent)
    }

    /// Sends a message and shows nothing.
    pub(super) async fn post(&self, envelope: Envelope) -> Result<Sent> {
        match self.engine.send(std::slice::from_ref(&envelope)).await.pop() {
            Some(Ok(sent)) => Ok(sent),
            Some(Err(error)) => Err(format!("{} was not sent: {error}", envelope.message.id)),
            None => Err(format!("there is no result for {}", envelope.message.id)),
        }
    }

    /// Waits until a message was handled in a subscription, and shows reports of handlers
    /// meanwhile.
    pub(super) async fn handled(&mut self, id: &str, place: &Address) -> Result<()> {
        let id = MessageId::from(id);
        while self.books.ends(&id, place) == 0 {
            let told = self.listen(&format!("{id} was not handled by {place}")).await?;
            self.show(&told);
        }
        Ok(())
    }

    /// Waits until the handler of a message was started, and shows that.
    pub(super) async fn started(&mut self, id: &str, place: &Address, text: &str) -> Result<()> {
        loop {
            let told = self.listen(&format!("{id} was not started in {place}")).await?;
            if told.what == What::Started && &*told.id.0 == id && told.place == *place {
                self.screen.line_at(told.at, Mark::Runs, &place.to_string(), id, text);
                return Ok(());
            }
            self.show(&told);
        }
    }

    /// Waits for the next report of a handler, and enters it in the books.
    pub(super) async fn listen(&mut self, otherwise: &str) -> Result<Told> {
        let clock = self.clock();
        let told = tokio::select! {
            biased;
            told = self.told.recv() => told,
            () = clock.sleep(PATIENCE) => None,
        };
        let told = told.ok_or_else(|| format!("{otherwise} within {}", format_duration(PATIENCE)))?;
        self.enter(&told);
        Ok(told)
    }

    /// Shows a report of a handler, unless it is only the start of a run.
    fn show(&self, told: &Told) {
        if told.what != What::Handled {
            return;
        }
        let run = if told.run > 1 { format!(" in run {}", told.run) } else { String::new() };
        let late = match self.books.late(&told.id, &told.place) {
            Some(late) if late < 0 => format!(", {} ms EARLY", -late),
            Some(late) => format!(", {late} ms late"),
            None => String::new(),
        };
        let text = format!("handled{run}{late}");
        self.screen.line_at(told.at, Mark::Handled, &told.place.to_string(), &told.id.0, &text);
    }

    /// Waits until the monitor shows the `nth` failed run of a message, and shows its details.
    pub(super) async fn failed(&mut self, id: &str, place: &Address, nth: u32) -> Result<()> {
        let is_it = |seen: &Seen| seen.stage == Stage::Retrying && seen.retry_count == nth;
        let seen = self.seen(id, place, is_it).await?;
        let wait = self.will_wait(&seen, place);
        self.screen.line(Mark::Failed, &place.to_string(), id, &format!("run {nth} failed, retry in {wait}"));
        self.screen.detail(seen.last_error.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Waits until the monitor shows that a message was deferred, and shows that.
    pub(super) async fn deferred(&mut self, id: &str, place: &Address) -> Result<()> {
        let is_it = |seen: &Seen| seen.stage == Stage::Enqueued && seen.next_retry_at.is_some();
        let seen = self.seen(id, place, is_it).await?;
        let wait = self.will_wait(&seen, place);
        self.screen.line(Mark::Deferred, &place.to_string(), id, &format!("deferred, due in {wait}"));
        Ok(())
    }

    /// Enters when a message is due again, and returns the remaining time.
    fn will_wait(&mut self, seen: &Seen, place: &Address) -> String {
        let Some(due) = seen.next_retry_at else { return "an unknown time".to_owned() };
        self.books.waits(&seen.id, place, due);
        ms(due.since(self.now()))
    }

    /// Waits until the monitor shows a message in a state that satisfies `is_it`.
    async fn seen(&mut self, id: &str, place: &Address, is_it: impl Fn(&Seen) -> bool) -> Result<Seen> {
        let monitor = self.engine.monitor().clone();
        let is_here = |seen: &Seen| {
            &*seen.id.0 == id
                && seen.topic == *place.topic_name()
                && seen.subscription.as_ref() == place.subscription_name()
        };
        self.look(&format!("the monitor does not show the outcome of {id} in {place}"), async || {
            let list = monitor.list(100).await?;
            Ok(list.into_iter().find(|seen| is_here(seen) && is_it(seen)))
        })
        .await
    }

    /// Waits until the monitor shows a message among the dead letters.
    pub(super) async fn dead(&mut self, id: &str) -> Result<Record> {
        let monitor = self.engine.monitor().clone();
        self.look(&format!("{id} is not among the dead letters"), async || {
            let dead = monitor.dead(100).await?;
            Ok(dead.into_iter().find(|record| &*record.message.id.0 == id))
        })
        .await
    }

    /// Waits until the monitor shows no more messages: a handler reports its success before its
    /// message is settled.
    pub(super) async fn all_settled(&mut self) -> Result<()> {
        let monitor = self.engine.monitor().clone();
        let otherwise = "the monitor still shows unsettled messages";
        self.look(otherwise, async || Ok(monitor.list(1).await?.is_empty().then_some(()))).await
    }

    /// Waits until the monitor shows this number of runs that timed out and have not returned.
    pub(super) async fn hung_runs(&mut self, count: usize) -> Result<()> {
        let monitor = self.engine.monitor().clone();
        let otherwise = format!("the monitor does not show {count} hung runs");
        self.look(&otherwise, async || Ok((monitor.hung().len() == count).then_some(()))).await
    }

    /// Polls until there is a result. Reports of handlers are entered and shown meanwhile.
    async fn look<T>(
        &mut self,
        otherwise: &str,
        mut at: impl AsyncFnMut() -> dwell_core::Result<Option<T>>,
    ) -> Result<T> {
        let clock = self.clock();
        let until = clock.elapsed() + PATIENCE;
        while clock.elapsed() < until {
            let found = at().await.map_err(|error| format!("{otherwise}: {error}"))?;
            // Reports that precede the result belong in the books first.
            while let Ok(told) = self.told.try_recv() {
                self.enter(&told);
                self.show(&told);
            }
            if let Some(found) = found {
                return Ok(found);
            }
            clock.sleep(LOOK).await;
        }
        Err(format!("{otherwise} within {}", format_duration(PATIENCE)))
    }

    fn enter(&mut self, told: &Told) {
        match told.what {
            What::Started => self.books.started(&told.id, &told.place, told.now, told.due),
            What::Handled => self.books.handled(&told.id, &told.place),
        }
    }
}

/// A message to send.
pub(super) struct Parcel<'a> {
    pub(super) id: &'a str,
    pub(super) kind: &'a str,
    pub(super) body: &'a str,
    /// Its delay; zero for none.
    pub(super) after: Duration,
    /// Subscriptions that get it.
    pub(super) places: &'a [Address],
}

/// Creates a message with an id that the sender chose.
pub(super) fn envelope(topic: &str, id: &str, kind: &str, body: &str, now: Timestamp) -> Envelope {
    let message = Message::new(id, kind, body.to_owned()).with(|message| message.sent_at = Some(now));
    Envelope::new(Address::topic(topic), message).once(OnConflict::Fail)
}

/// Formats a duration in whole milliseconds.
pub(super) fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
