//! The outcome table: what becomes of a message, whatever its handler says, with async handlers and
//! with blocking ones.

mod common;
use common::{hanging, logs, *};
use dwell::{
    Builder, Timestamp,
    prelude::*,
    raw::{Address, ContentType, Message, State as Stands},
    settings::{MaxRuns, OnUnknown, RetryPolicy},
};
use dwell_core::{Outcome, VirtualClock, wire};
use dwell_engine::Status;
use std::{sync::Arc, time::Duration};
use tracing::Level;

/// One row of the table.
struct Row {
    /// What arrives.
    message: fn() -> Message,
    /// What is set about the subscription.
    mail: fn(Subscription) -> Subscription,
    /// What the handler returns in its nth run, from 1.
    answer: fn(u32) -> Result<(), Failure>,
    /// When each run begins, in seconds, and the counts that it sees: handled, failed.
    runs: &'static [(f64, u32, u32)],
    end: End,
}

/// How it ends.
enum End {
    /// Handled, and gone.
    Done,
    /// Acked on purpose, and gone.
    Left(Outcome),
    /// In this channel, with this reason and description.
    Dead(&'static str, &'static str, &'static str),
}
use End::{Dead, Done, Left};

/// A plain order, and a subscription with nothing special: what a row does not say.
const ROW: Row =
    Row { message: order, mail: |mail| mail, answer: |_| Ok(()), runs: &[(0.0, 0, 0)], end: Done };

const DELIVERY: &str = "delivery_error";
const UNACCEPTABLE: &str = "unacceptable";

fn order() -> Message {
    let mut message = Message::new("a", "orders.placed", serde_json::to_vec(&placed(42)).unwrap());
    message.headers.append("shop", "berlin");
    message
}

fn unreadable() -> Message {
    order().with(|message| message.body = "{\"order\":".into())
}

fn foreign() -> Message {
    order().with(|message| message.content_type = ContentType::from("text/csv"))
}

fn stranger() -> Message {
    order().with(|message| message.kind = "orders.shipped".into())
}

fn untyped() -> Message {
    order().with(|message| message.kind = "".into())
}

fn defer() -> Result<(), Failure> {
    Err(Failure::defer())
}

fn anyhow_chain() -> anyhow::Result<()> {
    Err(anyhow::anyhow!("disk gone").context("could not save").context("order 42"))
}

macro_rules! table {
    ($($name:ident: $row:expr;)*) => {
        on_both_pumps! { $(async fn $name(pump) { $row.check(pump).await })* }
    };
}

table! {
    success_is_acknowledged_and_gone: ROW;

    a_deferral_waits_for_the_delay_of_the_subscription: Row {
        mail: |mail| mail.defer_delay(seconds(7.0)),
        answer: |run| if run == 1 { defer() } else { Ok(()) },
        runs: &[(0.0, 0, 0), (7.0, 1, 0)],
        ..ROW
    };
    a_deferral_with_a_delay_of_its_own_waits_for_that: Row {
        mail: |mail| mail.defer_delay(seconds(7.0)),
        answer: |run| if run == 1 { Err(Failure::defer().after(seconds(30.0))) } else { Ok(()) },
        runs: &[(0.0, 0, 0), (30.0, 1, 0)],
        ..ROW
    };
    a_deferral_by_zero_comes_back_at_once: Row {
        mail: |mail| mail.defer_delay(seconds(7.0)),
        answer: |run| if run < 3 { Err(Failure::defer().after(Duration::ZERO)) } else { Ok(()) },
        runs: &[(0.0, 0, 0), (0.0, 1, 0), (0.0, 2, 0)],
        ..ROW
    };
    a_deferral_until_a_time_comes_back_then: Row {
        answer: |run| match run {
            1 => Err(Failure::defer().at(Timestamp(START + 3_600_000))),
            _ => Ok(()),
        },
        runs: &[(0.0, 0, 0), (3600.0, 1, 0)],
        ..ROW
    };
    a_deferral_until_a_time_that_has_passed_comes_back_at_once: Row {
        answer: |run| if run == 1 { Err(Failure::defer().at(Timestamp(START - 1))) } else { Ok(()) },
        runs: &[(0.0, 0, 0), (0.0, 1, 0)],
        ..ROW
    };
    deferrals_use_up_no_retry: Row {
        mail: |mail| mail.retry(RetryPolicy { max_retries: 1, ..exact() }),
        answer: |run| match run {
            1 | 2 | 4 | 5 => defer(),
            3 => boom(),
            _ => Ok(()),
        },
        runs: &[(0.0, 0, 0), (1.0, 1, 0), (2.0, 2, 0), (7.0, 3, 1), (8.0, 4, 1), (9.0, 5, 1)],
        ..ROW
    };
    deferrals_end_among_the_dead_letters_after_max_runs: Row {
        mail: |mail| mail.max_runs(MaxRuns::Limited(3)),
        answer: |_| defer(),
        runs: &[(0.0, 0, 0), (1.0, 1, 0), (2.0, 2, 0)],
        end: Dead("orders.dlq", DELIVERY, "gave up after 3 runs: the last run deferred the message again"),
        ..ROW
    };

    a_rejection_is_a_dead_letter_at_once: Row {
        answer: |_| Err(Failure::reject("card declined")),
        end: Dead("orders.dlq", DELIVERY, "card declined"),
        ..ROW
    };
    a_rejection_ignores_the_channel_for_invalid_messages: Row {
        mail: |mail| mail.invalid("orders.invalid"),
        answer: |_| Err(Failure::reject("card declined")),
        end: Dead("orders.dlq", DELIVERY, "card declined"),
        ..ROW
    };

    an_invalid_message_goes_to_the_invalid_messages_and_is_never_tried_again: Row {
        mail: |mail| mail.invalid("orders.invalid"),
        answer: |_| Err(Failure::invalid("no such order")),
        end: Dead("orders.invalid", UNACCEPTABLE, "no such order"),
        ..ROW
    };
    without_a_channel_of_its_own_an_invalid_message_is_a_dead_letter: Row {
        answer: |_| Err(Failure::invalid("no such order")),
        end: Dead("orders.dlq", UNACCEPTABLE, "no such order"),
        ..ROW
    };
    an_unreadable_body_is_invalid_and_never_reaches_the_handler: Row {
        message: unreadable,
        mail: |mail| mail.invalid("orders.invalid"),
        runs: &[],
        end: Dead("orders.invalid", UNACCEPTABLE, "the body cannot be decoded as application/json: EOF while parsing a value at line 1 column 9"),
        ..ROW
    };
    without_a_channel_of_its_own_an_unreadable_body_is_a_dead_letter: Row {
        message: unreadable,
        runs: &[],
        end: Dead("orders.dlq", UNACCEPTABLE, "the body cannot be decoded as application/json: EOF while parsing a value at line 1 column 9"),
        ..ROW
    };
    another_content_type_is_invalid_although_the_body_could_be_read: Row {
        message: foreign,
        runs: &[],
        end: Dead("orders.dlq", UNACCEPTABLE, "the body has the content type text/csv; its message type requires application/json"),
        ..ROW
    };
    a_type_that_nobody_handles_is_invalid: Row {
        message: stranger,
        mail: |mail| mail.invalid("orders.invalid"),
        runs: &[],
        end: Dead("orders.invalid", UNACCEPTABLE, "no handler for messages of type `orders.shipped` in orders/mail"),
        ..ROW
    };
    a_message_without_a_type_is_invalid_and_says_how_to_mend_it: Row {
        message: untyped,
        runs: &[],
        end: Dead("orders.dlq", UNACCEPTABLE, "the message has no type, so no handler in orders/mail matches: set the header `x-dwell-type`, or on SQLite the column `type`"),
        ..ROW
    };
    a_type_that_nobody_handles_is_left_alone_if_told_so: Row {
        message: stranger,
        mail: |mail| mail.on_unknown(OnUnknown::Skip),
        runs: &[],
        end: Left(Outcome::Skipped),
        ..ROW
    };

    a_release_comes_back_uncounted_and_not_before_its_delay: Row {
        mail: |mail| mail.with(|settings| settings.release_delay = seconds(3.0)),
        answer: |run| if run < 3 { Err(Failure::release("not now")) } else { Ok(()) },
        runs: &[(0.0, 0, 0), (3.0, 0, 0), (6.0, 0, 0)],
        ..ROW
    };

    an_error_is_tried_again_with_backoff_and_then_a_dead_letter: Row {
        answer: |_| boom(),
        runs: &[(0.0, 0, 0), (5.0, 1, 1), (15.0, 2, 2), (35.0, 3, 3), (75.0, 4, 4), (135.0, 5, 5)],
        end: Dead("orders.dlq", DELIVERY, "boom"),
        ..ROW
    };
    an_error_that_passes_is_forgotten: Row {
        answer: |run| if run < 3 { boom() } else { Ok(()) },
        runs: &[(0.0, 0, 0), (5.0, 1, 1), (15.0, 2, 2)],
        ..ROW
    };
    an_error_of_any_type_says_all_its_causes: Row {
        mail: |mail| mail.retry(RetryPolicy { max_retries: 0, ..exact() }),
        answer: |_| Ok(anyhow_chain()?),
        end: Dead("orders.dlq", DELIVERY, "order 42: could not save: disk gone"),
        ..ROW
    };
    a_panic_is_an_error: Row {
        mail: |mail| mail.retry(RetryPolicy { max_retries: 1, ..exact() }),
        answer: |run| panic!("planned, in run {run}"),
        runs: &[(0.0, 0, 0), (5.0, 1, 1)],
        end: Dead("orders.dlq", DELIVERY, "the handler panicked: planned, in run 2"),
        ..ROW
    };
    errors_end_among_the_dead_letters_after_max_runs_although_retries_are_left: Row {
        mail: |mail| mail.max_runs(MaxRuns::Limited(2)),
        answer: |_| boom(),
        runs: &[(0.0, 0, 0), (5.0, 1, 1)],
        end: Dead("orders.dlq", DELIVERY, "boom"),
        ..ROW
    };

    what_is_rejected_is_dropped_if_told_so: Row {
        mail: |mail| mail.discard_dead_letters(),
        answer: |_| Err(Failure::reject("no")),
        end: Left(Outcome::Rejected),
        ..ROW
    };
    what_is_invalid_is_dropped_if_told_so: Row {
        message: unreadable,
        mail: |mail| mail.discard_dead_letters(),
        runs: &[],
        end: Left(Outcome::Invalid),
        ..ROW
    };
    what_failed_too_often_is_dropped_if_told_so: Row {
        mail: |mail| mail.retry(RetryPolicy { max_retries: 1, ..exact() }).discard_dead_letters(),
        answer: |_| boom(),
        runs: &[(0.0, 0, 0), (5.0, 1, 1)],
        end: Left(Outcome::Exhausted),
        ..ROW
    };
}

impl Row {
    async fn check(self, pump: Pump) {
        self.check_dispatched(pump, |wiring| wiring).await;
        self.check_dispatched(pump, Builder::inline).await;
    }

    /// In the background, or inline: it is all the same.
    async fn check_dispatched(&self, pump: Pump, dispatched: fn(Builder) -> Builder) {
        logs::capture();
        let (journal, answer) = (Journal::default(), self.answer);
        let handler = journal.handler(pump, move |run, _| answer(run.number));
        let wiring = Bus::builder().subscribe((self.mail)(mail()), handler);
        let world = World::of(&journal, dispatched(wiring)).await;
        let sent = (self.message)();
        world.post(Address::topic("orders"), sent.clone()).await.unwrap();
        world.pass(100_000.0).await;

        let runs: Vec<_> = world.journal.runs().iter().map(|run| (run.at, run.handled, run.failed)).collect();
        assert_eq!(runs, self.runs);
        let last = world.journal.decisions().pop().unwrap();
        let dead = world.dead().await;
        match self.end {
            Done => assert_eq!((last.outcome, last.discarded), (Outcome::Handled, false)),
            Left(outcome) => {
                assert_eq!((last.outcome, last.to), (outcome, None));
                assert_eq!(last.discarded, outcome != Outcome::Skipped);
            }
            Dead(channel, reason, description) => {
                assert_eq!(last.to.as_deref(), Some(channel));
                assert_eq!(dead.len(), 1);
                let headers = &dead[0].message.headers;
                assert_eq!(headers.get_text(wire::REJECTION_REASON), Some(reason));
                assert_eq!(headers.get_text(wire::REJECTION_MESSAGE), Some(description));
                assert_eq!(headers.get_text(wire::LAST_ERROR), Some(description));
            }
        }
        self.check_told(&logs::take());
        if !matches!(self.end, Dead(..)) {
            assert_eq!(world.get("a").await.unwrap(), [], "nothing is left of it");
        }
        // Whatever became of it: the subscription goes on.
        world.post(Address::topic("orders"), sent.with(|message| message.id = "next".into())).await.unwrap();
        world.run_until_idle().await;
        assert_eq!(world.journal.decisions().pop().unwrap().id, "next");
    }

    /// Whoever was given up is told at error level, with where it went; nobody else is.
    fn check_told(&self, lines: &[logs::Line]) {
        let to = match self.end {
            Done | Left(Outcome::Skipped) => None,
            Left(_) => Some("nowhere: discarded"),
            Dead(channel, ..) => Some(channel),
        };
        let errors = lines.iter().filter(|line| line.level == Level::ERROR);
        let told: Vec<_> = errors.map(|line| (&*line.message, line.field("to"))).collect();
        assert_eq!(told, to.map(|to| ("dead-lettered", Some(to))).as_slice());
    }
}

on_both_pumps! {
    async fn a_dead_letter_bears_all_stamps_and_is_otherwise_as_it_was(pump) {
        let world = World::new(pump, retries(1), [], |_, _| boom()).await;
        let sent = world.publish_with_header().await;
        world.pass(60.0).await;
        let [dead] = &world.dead().await[..] else { panic!("one dead letter") };
        let stamp = |name| dead.message.headers.get_text(name).unwrap_or("missing");
        assert_eq!((stamp(wire::ORIGINAL_TOPIC), stamp(wire::ORIGINAL_TYPE)), ("orders", "orders.placed"));
        assert_eq!((stamp(wire::REJECTION_REASON), stamp(wire::REJECTION_MESSAGE)), (DELIVERY, "boom"));
        assert_eq!((stamp(wire::SUBSCRIPTION), stamp(wire::LAST_ERROR)), ("mail", "boom"));
        assert_eq!(stamp(wire::REJECTED_AT), Timestamp(START + 5_000).to_rfc3339());
        assert_eq!((dead.message.attempts.handled, dead.message.attempts.failed), (2, 2));
        assert_eq!((&*dead.topic, dead.subscription.as_deref(), dead.state), ("orders", Some("mail"), Stands::Dead));
        assert_eq!((&dead.message.id, &dead.message.body[..]), (&sent, &serde_json::to_vec(&placed(42)).unwrap()[..]));
        assert_eq!(dead.message.key.as_deref(), Some(&b"order-42"[..]));
        assert_eq!(stamp("shop"), "berlin");
    }

    async fn a_released_message_holds_no_slot(pump) {
        let world = World::new(pump, mail().concurrency(1), [], |run, _| match (&*run.id, run.number) {
            ("a", 1) => Err(Failure::release("not now")),
            _ => Ok(()),
        }).await;
        world.publish(["a", "b", "c"]).await;
        world.pass(10.0).await;
        assert_eq!(world.line(), "a@0 b@0 c@0 a@1");
    }

    async fn what_cannot_be_read_is_told_without_the_payload(pump) {
        let bodies = [
            (format!(r#"{{"order":"{CARD}","card":""}}"#), "invalid type: string, expected u64 at line 1 column 25"),
            (r#"{"order":4929,"card":4929}"#.to_owned(), "invalid type: integer, expected a string at line 1 column 25"),
            (r#"{"order":-4929,"card":""}"#.to_owned(), "invalid value at line 1 column 14"),
            (r#"{"order":4929}"#.to_owned(), "missing field `card` at line 1 column 14"),
        ];
        for (body, problem) in bodies {
            logs::capture();
            let world = World::new(pump, mail(), [], |_, _| Ok(())).await;
            world.post(Address::topic("orders"), order().with(|message| message.body = body.into())).await.unwrap();
            world.run_until_idle().await;
            let lines = logs::take();
            let dead: Vec<_> = lines.iter().filter(|line| line.message == "dead-lettered").collect();
            let [line] = dead[..] else { panic!("one line: {lines:#?}") };
            assert_eq!(line.field("error"), Some(&*format!("the body cannot be decoded as application/json: {problem}")));
            assert!(!format!("{lines:?}").contains("4929"), "{lines:#?}");
        }
    }

    async fn a_misconfigured_performer_stops_and_its_twin_goes_on(pump) {
        let twins = mail().performers(2);
        let world = World::new(pump, twins, [], |run, _| match (&*run.id, run.number) {
            ("a", 1) => Err(Failure::misconfigured("no key")),
            _ => Ok(()),
        }).await;
        world.publish(["a", "b", "c"]).await;
        world.pass(60.0).await;
        assert_eq!(world.handled::<Placed>(), 3);
        let mut status = world.monitor().pumps()[0].status();
        status.sort_by_key(|status| *status == Status::Running);
        assert_eq!(status, [Status::Misconfigured("no key".into()), Status::Running]);
    }

    async fn a_misconfigured_handler_stops_its_subscription_with_a_status_and_no_other(pump) {
        let journal = Journal::default();
        let wiring = Bus::builder()
            .subscribe(named("broken"), journal.handler(pump, |run, _| match (&*run.id, run.number) {
                ("a", 1) => Err(Failure::misconfigured("no key for the mail server")),
                _ => Ok(()),
            }))
            .subscribe(named("sound"), journal.handler(pump, |_, _| Ok(())));
        let world = World::of(&journal, wiring).await;
        world.publish(["a", "b"]).await;
        world.pass(3600.0).await;
        world.publish(["c"]).await;
        world.pass(3600.0).await;
        assert_eq!((journal.runs_of("broken"), journal.runs_of("sound")), (1, 3), "it is not started again by itself");

        let pumps = world.monitor().pumps();
        let broken = pumps.iter().find(|pump| &*pump.settings().name == "broken").unwrap();
        let sound = pumps.iter().find(|pump| &*pump.settings().name == "sound").unwrap();
        assert_eq!(broken.status(), [Status::Misconfigured("no key for the mail server".into())]);
        assert_eq!(sound.status(), [Status::Running]);
        let waiting = world.get("a").await.unwrap();
        assert_eq!(waiting.len(), 1, "it waits for better times, with the others");
        assert_eq!((waiting[0].state, waiting[0].message.attempts.handled), (Stands::Ready, 0));

        broken.restart();
        world.run_until_idle().await;
        assert_eq!(journal.runs_of("broken"), 4);
        assert!(world.dead().await.is_empty());
    }
}

#[tokio::test]
async fn an_async_handler_that_does_not_end_is_dropped_at_its_timeout_and_tried_again() {
    let journal = Journal::default();
    let runs = journal.clone();
    let hangs = move |_: Placed, cx: Cx| {
        let run = runs.begin(&cx);
        async move {
            if run.number < 3 {
                std::future::pending::<()>().await;
            }
        }
    };
    let wiring = Bus::builder().subscribe(mail().handler_timeout(seconds(3.0)), hangs);
    let world = World::of(&journal, wiring).await;
    world.play().await;
    assert_eq!(world.times(), [0.0, 8.0, 21.0], "three seconds of patience, then backoff from there");
    assert_eq!(journal.outcomes(), [Outcome::Failed, Outcome::Failed, Outcome::Handled]);
    assert_eq!(world.errors::<Placed>(), ["the handler did not finish within 3s"; 2]);
}

#[tokio::test]
async fn a_blocking_handler_that_does_not_end_is_abandoned_at_its_timeout_and_tried_again() {
    let (time, journal) = (VirtualClock::new(), Journal::default());
    let (trap, opener) = hanging::trap();
    let inside = trap.clone();
    let hangs = journal.handler(Pump::Blocking, move |run, _| {
        if run.number == 1 {
            inside.enter();
            return Err(Failure::reject("too late to say this"));
        }
        Ok(())
    });
    let bus = Bus::builder()
        .subscribe(mail().handler_timeout(seconds(3.0)), hangs)
        .seams(hanging::seams(&time, 1))
        .observer(Arc::new(journal.clone()))
        .start("memory://")
        .await
        .unwrap();
    bus.publish(placed(42)).await.unwrap();
    trap.caught().await;
    time.advance(seconds(60.0)).await;
    assert_eq!(journal.times(), [0.0, 8.0]);
    assert_eq!(bus.monitor().hung().len(), 1, "it is shown until its thread comes back");
    opener.open().unwrap();
    time.advance(seconds(60.0)).await;
    assert_eq!(
        journal.outcomes(),
        [Outcome::Failed, Outcome::Handled],
        "what it says late counts for nothing"
    );
    assert!(bus.monitor().dead(10).await.unwrap().is_empty());
}

impl World {
    /// Publishes an order with a key and a header, and returns its id.
    async fn publish_with_header(&self) -> dwell::raw::MessageId {
        self.bus.publish(placed(42)).key("order-42").header("shop", "berlin").await.unwrap().id
    }
}
