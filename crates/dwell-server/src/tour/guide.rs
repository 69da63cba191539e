//! Leads through the tour: sends, waits, looks, and shows what there is to see.

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

/// Nothing on this tour takes longer: what has not come by then never will.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the monitor.
const LOOK: Duration = Duration::from_millis(3);
/// For whoever reads along.
const PAUSE: Duration = Duration::from_millis(700);

/// A stop of the tour ends with this if something did not go as promised.
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

    /// Time to read.
    pub(super) async fn pause(&self) {
        if self.screen.is_terminal() {
            self.clock().sleep(PAUSE).await;
        }
    }

    /// Sends a message to everybody of its topic, and shows it.
    pub(super) async fn send(&mut self, parcel: Parcel<'_>) -> Result<Sent> {
        let Parcel { id, kind, body, after, places } = parcel;
        let topic: Text = places[0].topic_name().clone();
        let due = Due::After(after);
        // From before the send: whoever holds the message can only have resolved it later.
        let not_before = (!after.is_zero()).then(|| due.resolve(self.clock().moment()));
        let sent = self.post(envelope(&topic, id, kind, body, self.now()).due(due)).await?;
        self.books.sent(&id.into(), places, not_before);
        let text = match (sent.due, places) {
            (Some(due), _) => format!("sent, due in {}", ms(due.since(self.now()))),
            (None, [_]) => "sent".to_owned(),
            (None, _) => format!("sent, to all {} who subscribed", places.len()),
        };
        self.screen.line(Mark::Sent, &topic, id, &text);
        Ok(sent)
    }

    /// Sends, and shows nothing.
    pub(super) async fn post(&self, envelope: Envelope) -> Result<Sent> {
        match self.engine.send(std::slice::from_ref(&envelope)).await.pop() {
            Some(Ok(sent)) => Ok(sent),
            Some(Err(error)) => Err(format!("{} was not sent: {error}", envelope.message.id)),
            None => Err(format!("nobody says whether {} was sent", envelope.message.id)),
        }
    }

    /// Waits until a message was handled there, and shows what the handlers tell meanwhile.
    pub(super) async fn handled(&mut self, id: &str, place: &Address) -> Result<()> {
        let id = MessageId::from(id);
        while self.books.ends(&id, place) == 0 {
            let told = self.listen(&format!("{id} was not handled by {place}")).await?;
            self.show(&told);
        }
        Ok(())
    }

    /// Waits until its handler was started, and shows that.
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

    /// Waits for the next thing that a handler tells, and enters it in the books.
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

    /// Shows what a handler told, unless it is only that a run began.
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

    /// Waits until the monitor sees that a run of it failed for the `nth` time, and shows what the monitor knows.
    pub(super) async fn failed(&mut self, id: &str, place: &Address, nth: u32) -> Result<()> {
        let is_it = |seen: &Seen| seen.stage == Stage::Retrying && seen.retry_count == nth;
        let seen = self.seen(id, place, is_it).await?;
        let wait = self.will_wait(&seen, place);
        self.screen.line(Mark::Failed, &place.to_string(), id, &format!("run {nth} failed, again in {wait}"));
        self.screen.detail(seen.last_error.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Waits until the monitor sees that it was deferred, and shows it.
    pub(super) async fn deferred(&mut self, id: &str, place: &Address) -> Result<()> {
        let is_it = |seen: &Seen| seen.stage == Stage::Enqueued && seen.next_retry_at.is_some();
        let seen = self.seen(id, place, is_it).await?;
        let wait = self.will_wait(&seen, place);
        self.screen.line(Mark::Deferred, &place.to_string(), id, &format!("deferred, back in {wait}"));
        Ok(())
    }

    /// Enters when it is due again, and says how long that is.
    fn will_wait(&mut self, seen: &Seen, place: &Address) -> String {
        let Some(due) = seen.next_retry_at else { return "no time".to_owned() };
        self.books.waits(&seen.id, place, due);
        ms(due.since(self.now()))
    }

    /// Looks at the monitor until it shows the message there as `is_it` wants it.
    async fn seen(&mut self, id: &str, place: &Address, is_it: impl Fn(&Seen) -> bool) -> Result<Seen> {
        let monitor = self.engine.monitor().clone();
        let is_here = |seen: &Seen| {
            &*seen.id.0 == id
                && seen.topic == *place.topic_name()
                && seen.subscription.as_ref() == place.subscription_name()
        };
        self.look(&format!("the monitor does not see what became of {id} in {place}"), async || {
            let list = monitor.list(100).await?;
            Ok(list.into_iter().find(|seen| is_here(seen) && is_it(seen)))
        })
        .await
    }

    /// Waits until the monitor shows it among the dead letters.
    pub(super) async fn dead(&mut self, id: &str) -> Result<Record> {
        let monitor = self.engine.monitor().clone();
        self.look(&format!("{id} is not among the dead letters"), async || {
            let dead = monitor.dead(100).await?;
            Ok(dead.into_iter().find(|record| &*record.message.id.0 == id))
        })
        .await
    }

    /// Waits until the monitor shows nothing any more: a handler tells that it is done before its message is settled.
    pub(super) async fn all_settled(&mut self) -> Result<()> {
        let monitor = self.engine.monitor().clone();
        let otherwise = "the monitor still shows what should be settled";
        self.look(otherwise, async || Ok(monitor.list(1).await?.is_empty().then_some(()))).await
    }

    /// Waits until the monitor shows so many runs that were given up and have not come back.
    pub(super) async fn hung_runs(&mut self, count: usize) -> Result<()> {
        let monitor = self.engine.monitor().clone();
        let otherwise = format!("the monitor does not show {count} hung runs");
        self.look(&otherwise, async || Ok((monitor.hung().len() == count).then_some(()))).await
    }

    /// Looks again and again until there is something. What handlers tell meanwhile is entered and shown.
    async fn look<T>(
        &mut self,
        otherwise: &str,
        mut at: impl AsyncFnMut() -> dwell_core::Result<Option<T>>,
    ) -> Result<T> {
        let clock = self.clock();
        let until = clock.elapsed() + PATIENCE;
        while clock.elapsed() < until {
            let found = at().await.map_err(|error| format!("{otherwise}: {error}"))?;
            // What led to what was found was told before: it belongs in the books first.
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
    /// How long it waits; zero is not at all.
    pub(super) after: Duration,
    /// Who gets it.
    pub(super) places: &'a [Address],
}

/// A user's send under an id of the user's own.
pub(super) fn envelope(topic: &str, id: &str, kind: &str, body: &str, now: Timestamp) -> Envelope {
    let message = Message::new(id, kind, body.to_owned()).with(|message| message.sent_at = Some(now));
    Envelope::new(Address::topic(topic), message).once(OnConflict::Fail)
}

/// In whole milliseconds, as people read them.
pub(super) fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
