//! When failures are tried again, as the configuration says, and what people do about those that
//! were given up.

mod common;
use common::{logs, *};
use dwell::{
    Builder, Config,
    prelude::*,
    raw::State as Stands,
    settings::{RetryOverride, RetryPolicy},
};
use dwell_core::{Change, Changed, Outcome, RecordQuery};
use dwell_engine::Stage;
use tracing::Level;

/// Another type, in the same topic.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.refunded", topic = "orders")]
struct Refunded {
    order: u64,
}

fn config(toml: &str) -> Config {
    Config::from_toml(toml).expect("it can be read")
}

/// 2 s, then 3 s.
const GENERAL: &str = "
    [retry]
    max_retries = 2
    base_delay = \"2s\"
    max_delay = \"3s\"
    jitter = 0.0
";

/// When each run begins of a handler that always fails.
async fn times(pump: Pump, subscription: impl Into<Subscription>, toml: &str) -> Vec<f64> {
    let journal = Journal::default();
    let handler = journal.handler(pump, |_, _| boom());
    let wiring = Bus::builder().config(config(toml)).subscribe(subscription, handler);
    let world = World::of(&journal, wiring).await;
    world.play().await;
    assert_eq!(journal.outcomes().pop(), Some(Outcome::Exhausted));
    world.times()
}

on_both_pumps! {
    async fn the_configuration_holds_for_every_subscription_that_says_nothing_else(pump) {
        assert_eq!(times(pump, "mail", GENERAL).await, [0.0, 2.0, 5.0]);
        let own = Subscription::named("mail").retry(RetryPolicy { max_retries: 1, ..exact() });
        assert_eq!(times(pump, own, GENERAL).await, [0.0, 5.0], "code about one stands over what holds for all");
    }

    async fn what_it_says_about_one_subscription_stands_over_code_field_by_field(pump) {
        let one = "[[subscription]]\ntopic = \"orders\"\nname = \"mail\"\nretry.base_delay = \"9s\"\nretry.max_retries = 2";
        assert_eq!(times(pump, mail(), one).await, [0.0, 9.0, 27.0], "the rest is the code's");
        let other = one.replace("mail", "stock");
        assert_eq!(times(pump, retries(1), &other).await, [0.0, 5.0]);
    }

    async fn what_it_says_about_one_type_stands_over_all_field_by_field(pump) {
        let special = |settings: &str| format!("{GENERAL}\n[[retry.override]]\ntype = \"orders.placed\"\n{settings}");
        assert_eq!(times(pump, "mail", &special("max_retries = 1")).await, [0.0, 2.0]);
        assert_eq!(times(pump, "mail", &special("max_retries = 0")).await, [0.0]);
        assert_eq!(times(pump, "mail", &special("base_delay = \"1s\"")).await, [0.0, 1.0, 3.0]);
        assert_eq!(times(pump, "mail", &special("max_delay = \"4s\"")).await, [0.0, 2.0, 6.0]);
        assert_eq!(times(pump, mail(), &special("max_retries = 1")).await, [0.0, 5.0], "over code, too");
        assert_ne!(times(pump, "mail", &special("jitter = 0.15")).await, [0.0, 2.0, 5.0]);
    }

    async fn only_the_full_name_of_a_type_is_meant(pump) {
        for name in ["placed", "Placed", "orders", "orders.refunded"] {
            let toml = format!("{GENERAL}\n[[retry.override]]\ntype = \"{name}\"\nmax_retries = 0");
            assert_eq!(times(pump, "mail", &toml).await, [0.0, 2.0, 5.0], "{name}");
        }
    }

    async fn jitter_spreads_the_retries_and_never_exceeds_the_longest_delay(pump) {
        let world = World::new(pump, Subscription::named("mail").concurrency(1), [], |_, _| boom()).await;
        let orders: Vec<_> = (0..50).map(|order| world.bus.publish(placed(order)).id(format!("{order}"))).collect();
        assert!(world.send_all(orders).await.into_iter().all(|sent| sent.is_ok()));
        world.pass(1000.0).await;
        let runs = world.journal.runs();
        let waits = |number: u32| -> Vec<f64> {
            let at = |id: &str, number| runs.iter().find(|run| run.id == id && run.number == number).unwrap().at;
            (0..50).map(|id| at(&id.to_string(), number + 1) - at(&id.to_string(), number)).collect()
        };
        for (number, nominal) in [(1, 5.0), (2, 10.0), (3, 20.0), (4, 40.0), (5, 60.0_f64)] {
            let waits = waits(number);
            let (least, most) = (nominal * 0.85, (nominal * 1.15).min(60.0));
            assert!(waits.iter().all(|wait| (least - 0.001..=most + 0.001).contains(wait)), "{number}: {waits:?}");
            let early = waits.iter().filter(|wait| **wait < nominal * 0.95).count();
            assert!((5..45).contains(&early), "{number}: {waits:?}");
        }
    }

    async fn a_dead_letter_returns_to_its_own_subscription_alone_with_both_counts_at_zero(pump) {
        let journal = Journal::default();
        let wiring = Bus::builder()
            .subscribe(retries(1), journal.handler(pump, |run, _| if run.number < 3 { boom() } else { Ok(()) }))
            .subscribe(named("stock"), journal.handler(pump, |_, _| Ok(())));
        let world = World::of(&journal, wiring).await;
        world.play().await;
        assert_eq!((journal.runs_of("mail"), journal.runs_of("stock")), (2, 1));
        let monitor = world.monitor();
        assert_eq!(monitor.replay("a", None, "ada").await.unwrap(), Changed::Done);
        world.run_until_idle().await;
        assert_eq!((journal.runs_of("mail"), journal.runs_of("stock")), (3, 1));
        let last = journal.runs().pop().unwrap();
        assert_eq!((last.at, last.handled, last.failed), (100_000.0, 0, 0));
        assert!(world.dead().await.is_empty());
        assert_eq!(monitor.replay("a", None, "ada").await.unwrap(), Changed::NotFound);
    }

    async fn each_subscription_gets_back_what_it_gave_up_itself(pump) {
        let journal = Journal::default();
        let handler = || journal.handler(pump, |run, _| match run.number {
            1 => Err(Failure::reject("no")),
            _ => Ok(()),
        });
        let wiring = Bus::builder()
            .subscribe(named("mail"), handler())
            .subscribe(named("stock"), handler())
            .subscribe(named("audit"), journal.handler(pump, |_, _| Ok(())));
        let world = World::of(&journal, wiring).await;
        world.publish(["a"]).await;
        world.run_until_idle().await;
        let mut gave_up: Vec<_> = world.dead().await.into_iter().map(|dead| dead.subscription.unwrap().to_string()).collect();
        gave_up.sort();
        assert_eq!(gave_up, ["mail", "stock"]);
        world.monitor().replay("a", None, "ada").await.unwrap();
        world.pass(60.0).await;
        assert_eq!(["mail", "stock", "audit"].map(|name| journal.runs_of(name)), [2, 2, 1]);
    }

    async fn a_dead_letter_may_be_edited_before_it_is_tried_again(pump) {
        let world = World::new(pump, mail(), [], |_, cx| {
            let order: Placed = serde_json::from_slice(&cx.message().body)?;
            if order.order == 43 { Ok(()) } else { Err(Failure::reject("must be 43")) }
        }).await;
        world.publish(["a"]).await;
        world.run_until_idle().await;
        let dead = world.dead().await;
        assert_eq!(dead[0].message.body, serde_json::to_vec(&placed(42)).unwrap(), "it keeps its payload");
        world.monitor().replay("a", None, "ada").await.unwrap();
        world.run_until_idle().await;
        assert_eq!(world.dead().await.len(), 1, "as it was, it dies again");
        let edited = serde_json::to_vec(&placed(43)).unwrap();
        world.monitor().replay("a", Some(edited.into()), "ada").await.unwrap();
        world.run_until_idle().await;
        assert_eq!(world.journal.outcomes(), [Outcome::Rejected, Outcome::Rejected, Outcome::Handled]);
        assert!(world.dead().await.is_empty());
    }

    async fn a_dead_letter_stays_until_it_is_cleared(pump) {
        let world = World::new(pump, mail(), [], |_, _| Err(Failure::reject("no"))).await;
        world.publish(["a", "b"]).await;
        world.pass(365.0 * 86_400.0).await;
        assert_eq!(world.dead().await.len(), 2);
        assert_eq!(world.monitor().clear("a", "ada").await.unwrap(), Changed::Done);
        let left: Vec<_> = world.dead().await.into_iter().map(|dead| dead.message.id.to_string()).collect();
        assert_eq!(left, ["b"]);
        assert_eq!(world.monitor().clear("a", "ada").await.unwrap(), Changed::NotFound);
        assert_eq!(world.monitor().replay("a", None, "ada").await.unwrap(), Changed::NotFound);
        world.run_until_idle().await;
        assert_eq!(world.journal.runs().len(), 2, "what was cleared never runs again");
    }

    async fn all_that_died_of_one_cause_is_tried_again_at_once(pump) {
        let world = World::new(pump, mail(), [], |run, _| match (run.number, &run.id[..3]) {
            (1, "gas") => Err(Failure::reject("no gas")),
            (1, _) => Err(Failure::reject("no power")),
            _ => Ok(()),
        }).await;
        world.publish(["gas-1", "pow-1", "gas-2"]).await;
        world.run_until_idle().await;
        let query = RecordQuery { error: Some("no gas".into()), states: vec![Stands::Dead], ..RecordQuery::default() };
        let tally = world.monitor().change_all(query, Change::Replay(None), "ada").await.unwrap();
        assert_eq!((tally.changed, tally.too_late), (2, 0));
        world.run_until_idle().await;
        let left: Vec<_> = world.dead().await.into_iter().map(|dead| dead.message.id.to_string()).collect();
        assert_eq!(left, ["pow-1"]);
    }

    async fn a_message_is_listed_while_it_waits_to_be_tried_again_and_when_it_is_dead(pump) {
        let world = World::new(pump, retries(1), [], |_, _| boom()).await;
        let start = world.now();
        world.bus.publish(placed(42)).id("a").after(SECOND).await.unwrap();
        let stands = async || {
            let seen = world.monitor().list(10).await.unwrap();
            assert!(seen.iter().all(|seen| &*seen.kind == "orders.placed" && &*seen.topic == "orders"));
            seen.into_iter()
                .map(|seen| (seen.subscription.map(|name| name.to_string()), seen.stage, seen.retry_count,
                    seen.last_error.map(|error| error.to_string()), seen.next_retry_at))
                .collect::<Vec<_>>()
        };
        assert_eq!(stands().await, [(None, Stage::Enqueued, 0, None, Some(start.after(SECOND)))]);
        world.pass(1.0).await;
        let mail = || Some("mail".to_owned());
        let boom = || Some("boom".to_owned());
        let again = start.after(seconds(6.0));
        assert_eq!(stands().await, [(mail(), Stage::Retrying, 1, boom(), Some(again))]);
        world.pass(5.0).await;
        assert_eq!(stands().await, [(mail(), Stage::DeadLettered, 2, boom(), None)]);
        world.monitor().clear("a", "ada").await.unwrap();
        assert_eq!(stands().await, []);
    }
}

#[tokio::test]
async fn one_type_may_have_longer_than_the_others() {
    let journal = Journal::default();
    let toml = "[[retry.override]]\ntype = \"orders.placed\"\nhandler_timeout = \"9s\"\nmax_retries = 0";
    let hang = |_: Refunded| std::future::pending::<()>();
    let wiring = Bus::builder()
        .config(config(toml))
        .subscribe(
            retries(0).handler_timeout(seconds(3.0)).concurrency(2),
            journal.waiting(|_, _| std::future::pending()),
        )
        .subscribe("mail", hang);
    let world = World::of(&journal, wiring).await;
    world.bus.publish(placed(42)).await.unwrap();
    world.bus.publish(Refunded { order: 42 }).await.unwrap();
    world.pass(60.0).await;
    assert_eq!(world.errors::<Placed>(), ["the handler did not finish within 9s"]);
    assert_eq!(world.errors::<Refunded>(), ["the handler did not finish within 3s"]);
}

#[tokio::test]
async fn a_run_is_listed_while_it_lasts_and_gone_on_success() {
    let journal = Journal::default();
    let wiring = Bus::builder().subscribe(
        mail(),
        journal.waiting(|_, cx| async move {
            cx.clock().sleep(seconds(20.0)).await;
            Ok(())
        }),
    );
    let world = World::of(&journal, wiring).await;
    let start = world.now();
    world.publish(["a"]).await;
    world.pass(10.0).await;
    let seen = world.monitor().in_flight();
    assert_eq!(
        (seen.len(), seen[0].stage, seen[0].processing_started_at),
        (1, Stage::Processing, Some(start))
    );
    assert!(world.monitor().hung().is_empty());
    world.pass(10.0).await;
    assert!(world.monitor().in_flight().is_empty());
}

// ---- misspelt overrides
// --------------------------------------------------------------------------------------------

fn wiring(toml: &str) -> Builder {
    Bus::builder()
        .config(config(toml))
        .subscribe("mail", Journal::default().handler(Pump::Async, |_, _| Ok(())))
}

/// What was warned about at start.
async fn warnings(toml: &str) -> Vec<logs::Line> {
    logs::capture();
    let _bus = dwell::testing::start(wiring(toml)).await.unwrap();
    logs::take().into_iter().filter(|line| line.level <= Level::WARN).collect()
}

#[tokio::test]
async fn an_override_for_a_type_that_nobody_handles_is_a_warning_at_start() {
    let lines = warnings("[[retry.override]]\ntype = \"orders.plced\"\nmax_retries = 1").await;
    let [line] = &lines[..] else { panic!("one warning: {lines:#?}") };
    assert_eq!((line.level, line.field("kind")), (Level::WARN, Some("orders.plced")));
    assert_eq!(
        line.message,
        "`[[retry.override]]` names the type `orders.plced`, which has no handler on this bus; did you mean `orders.placed`?"
    );
    let lines = warnings("[[retry.override]]\ntype = \"billing\"\nmax_retries = 1").await;
    assert_eq!(
        lines[0].message,
        "`[[retry.override]]` names the type `billing`, which has no handler on this bus"
    );
}

#[tokio::test]
async fn an_override_of_one_subscription_for_a_type_that_it_does_not_handle_is_a_warning_at_start() {
    let one =
        "[[subscription]]\ntopic = \"orders\"\nname = \"mail\"\noverrides.\"orders.plced\".max_retries = 1";
    let lines = warnings(one).await;
    let [line] = &lines[..] else { panic!("one warning: {lines:#?}") };
    assert_eq!((line.level, line.field("kind")), (Level::WARN, Some("orders.plced")));
    assert_eq!(
        line.message,
        "`overrides` of the subscription `orders/mail` names the type `orders.plced`, which has no handler there; did you \
         mean `orders.placed`?"
    );
    assert!(warnings(&one.replace("plced", "placed")).await.is_empty());

    let special = ("orders.plced".to_owned(), RetryOverride::default());
    let code = mail().with(|settings| settings.overrides = [special].into());
    logs::capture();
    let _world = World::new(Pump::Async, code, [], |_, _| Ok(())).await;
    let lines: Vec<_> = logs::take().into_iter().map(|line| line.message).collect();
    assert!(lines.iter().any(|line| line.contains("`orders.plced`")), "{lines:?}");
}

#[tokio::test]
async fn an_override_for_a_type_that_is_handled_is_no_warning() {
    let lines = warnings("[[retry.override]]\ntype = \"orders.placed\"\nmax_retries = 1").await;
    assert!(lines.is_empty(), "{lines:#?}");
}

#[tokio::test]
async fn a_bus_that_only_sends_shares_the_file_of_those_that_handle_without_a_warning() {
    let toml = "[[retry.override]]\ntype = \"orders.placed\"\nmax_retries = 1\n\
                [[subscription]]\ntopic = \"orders\"\nname = \"mail\"\nbatch = 3";
    logs::capture();
    let _bus = wiring(toml).connect("memory://").await.unwrap();
    let lines = logs::take();
    assert!(lines.is_empty(), "{lines:#?}");
}
