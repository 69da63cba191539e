//! The three backstops: what they turn errors into, what they let pass, what they log, and how they
//! nest.

mod common;
use common::{logs, *};
use dwell::{
    IntoHandler as _, Next, Pipeline, Step,
    prelude::*,
    raw::{Address, Message},
};
use dwell_core::Outcome;
use std::time::Duration;
use tracing::Level;

/// Each backstop, with what it turns an error into and what it says then.
fn backstops() -> [(Step, Outcome, &'static str); 3] {
    [
        (Step::defer_on_error().into(), Outcome::Deferred, "deferring the message"),
        (Step::reject_on_error(), Outcome::Rejected, "rejecting the message"),
        (Step::release_on_error(), Outcome::Released, "releasing the message"),
    ]
}

/// What a handler may say on purpose, or without a fault.
fn control_outcomes() -> [Answer; 7] {
    [
        || Ok(()),
        || Err(Failure::defer()),
        || Err(Failure::defer().after(seconds(30.0))),
        || Err(Failure::reject("card declined")),
        || Err(Failure::release("not now")),
        || Err(Failure::invalid("no such order")),
        || Err(Failure::misconfigured("no key")),
    ]
}

/// The first run says `first`, all others succeed.
async fn world(pump: Pump, steps: Vec<Step>, first: Answer) -> World {
    let mail = mail().defer_delay(seconds(7.0)).with(|settings| settings.release_delay = seconds(3.0));
    let answer = move |run: &Run, _: &Cx| if run.number == 1 { first() } else { Ok(()) };
    World::new(pump, mail, steps, answer).await
}

/// What is seen of a message from outside.
async fn seen(world: &World) -> (Vec<Run>, Vec<Decision>, usize) {
    world.play().await;
    (world.journal.runs(), world.journal.decisions(), world.dead().await.len())
}

on_both_pumps! {
    async fn errors_and_panics_become_what_the_backstop_says(pump) {
        let faults: [(Answer, &str); 3] = [
            (boom, "boom"),
            (|| Ok("x".parse::<u64>().map(drop)?), "invalid digit found in string"),
            (|| panic!("planned"), "the handler panicked: planned"),
        ];
        for (fault, text) in faults {
            for (backstop, outcome, _) in backstops() {
                let world = world(pump, vec![backstop], fault).await;
                world.publish(["a"]).await;
                world.run_until_idle().await;
                assert_eq!(world.journal.outcomes(), [outcome]);
                assert_eq!(world.journal.decisions()[0].error.as_deref(), Some(text));
            }
        }
    }

    async fn a_backstop_uses_up_no_retry(pump) {
        let deferring = World::new(pump, retries(0), [Step::defer_on_error().into()], |run, _| {
            if run.number < 4 { boom() } else { Ok(()) }
        }).await;
        deferring.play().await;
        let seen: Vec<_> = deferring.journal.runs().iter().map(|run| (run.at, run.handled, run.failed)).collect();
        assert_eq!(seen, [(0.0, 0, 0), (1.0, 1, 0), (2.0, 2, 0), (3.0, 3, 0)]);

        let releasing = World::new(pump, retries(0), [Step::release_on_error()], |run, _| {
            if run.number < 3 { boom() } else { Ok(()) }
        }).await;
        releasing.play().await;
        let seen: Vec<_> = releasing.journal.runs().iter().map(|run| (run.at, run.handled, run.failed)).collect();
        assert_eq!(seen, [(0.0, 0, 0), (1.0, 0, 0), (2.0, 0, 0)]);
    }

    async fn what_a_handler_says_on_purpose_passes_every_backstop_untouched(pump) {
        for said in control_outcomes() {
            let plain = seen(&world(pump, vec![], said).await).await;
            for (backstop, ..) in backstops() {
                let backed = seen(&world(pump, vec![backstop.clone()], said).await).await;
                assert_eq!(backed, plain, "{backstop:?} around {:?}", said());
            }
        }
    }

    async fn a_message_that_cannot_be_read_stays_invalid_within_every_backstop(pump) {
        for (backstop, ..) in backstops() {
            let world = world(pump, vec![backstop], || Ok(())).await;
            world.post(Address::topic("orders"), Message::new("a", "orders.placed", "{}")).await.unwrap();
            world.run_until_idle().await;
            assert_eq!(world.journal.outcomes(), [Outcome::Invalid]);
        }
    }

    async fn a_backstop_says_what_it_caught_and_never_the_payload(pump) {
        for (backstop, _, verb) in backstops() {
            logs::capture();
            let world = world(pump, vec![backstop], boom).await;
            world.publish(["a"]).await;
            world.run_until_idle().await;
            let lines = logs::take();
            let caught: Vec<_> = lines.iter().filter(|line| line.message.contains("backstop")).collect();
            let [line] = caught[..] else { panic!("one line: {lines:#?}") };
            assert_eq!(line.level, Level::ERROR);
            assert!(line.message.ends_with(verb), "{}", line.message);
            let names = ["kind", "id", "topic", "subscription", "attempt", "error"];
            let fields = names.map(|name| line.field(name).unwrap_or("missing"));
            assert_eq!(fields, ["orders.placed", "a", "orders", "mail", "1", "boom"]);
            assert!(!format!("{lines:?}").contains(CARD), "{lines:#?}");
        }
    }

    async fn a_backstop_is_silent_about_all_that_is_no_error(pump) {
        for said in control_outcomes() {
            for (backstop, ..) in backstops() {
                logs::capture();
                seen(&world(pump, vec![backstop], said).await).await;
                let lines = logs::take();
                assert!(!lines.iter().any(|line| line.message.contains("backstop")), "{:?}: {lines:#?}", said());
            }
        }
    }

    async fn success_within_a_backstop_is_not_worth_a_line(pump) {
        logs::capture();
        let world = world(pump, backstops().map(|(backstop, ..)| backstop).into(), || Ok(())).await;
        world.play().await;
        let lines: Vec<_> = logs::take().into_iter().filter(|line| line.level <= Level::WARN).collect();
        assert!(lines.is_empty(), "{lines:#?}");
    }

    async fn a_deferral_waits_for_its_own_delay_or_else_for_the_subscriptions_and_zero_is_no_wait(pump) {
        let delays: [(Step, f64); 3] = [
            (Step::defer_on_error().into(), 7.0),
            (Step::defer_on_error().delay(Duration::ZERO).into(), 0.0),
            (Step::defer_on_error().delay(seconds(30.0)).into(), 30.0),
        ];
        for (backstop, delay) in delays {
            let world = world(pump, vec![backstop], boom).await;
            world.play().await;
            assert_eq!(world.times(), [0.0, delay]);
        }
    }

    async fn the_outermost_backstop_gets_only_what_the_inner_one_lets_through(pump) {
        let world = world(pump, vec![Step::reject_on_error(), Step::defer_on_error().into()], boom).await;
        world.play().await;
        assert_eq!(world.journal.outcomes(), [Outcome::Deferred, Outcome::Handled]);
    }

    async fn a_timeout_within_a_backstop_is_an_error_like_any_other(pump) {
        let slow = Step::around("slow", |cx: Cx, next: Next| async move {
            cx.clock().sleep(seconds(20.0)).await;
            next.run().await
        });
        let steps = vec![Step::reject_on_error(), Step::timeout(seconds(10.0)), slow];
        let world = world(pump, steps, || Ok(())).await;
        world.publish(["a"]).await;
        world.pass(10.0).await;
        assert_eq!(world.journal.outcomes(), [Outcome::Rejected]);
        assert_eq!(world.errors::<Placed>(), ["the handler did not finish within the step `timeout` of 10s"]);
    }

    async fn a_backstop_catches_a_panic_of_a_step_inside_of_it(pump) {
        let late = Step::around("careless", |_, next: Next| async move {
            next.run().await?;
            panic!("planned")
        });
        let early = Step::around("careless", |_, _| -> std::future::Ready<Result<(), Failure>> { panic!("planned") });
        for step in [late, early] {
            for (backstop, outcome, _) in backstops() {
                let world = world(pump, vec![backstop, step.clone()], || Ok(())).await;
                world.publish(["a"]).await;
                world.run_until_idle().await;
                assert_eq!(world.journal.outcomes(), [outcome]);
            }
        }
    }
}

/// A message whose reading panics.
#[derive(Event, Serialize)]
#[message(name = "orders.cursed", topic = "orders")]
struct Cursed;

impl<'de> Deserialize<'de> for Cursed {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("planned")
    }
}

#[tokio::test]
async fn a_backstop_catches_a_panic_on_the_way_to_the_handler() {
    let pipelines = [Pipeline::new(|_: Cursed| async {}), Pipeline::new(|_: Cursed| {})];
    for pipeline in pipelines {
        let journal = Journal::default();
        let wiring = Bus::builder().subscribe(mail(), pipeline.step(Step::reject_on_error()));
        let world = World::of(&journal, wiring).await;
        world.bus.publish(Cursed).await.unwrap();
        world.run_until_idle().await;
        assert_eq!(journal.outcomes(), [Outcome::Rejected]);
    }
}

// ---- attributes
// ----------------------------------------------------------------------------------------------------

mod attributed {
    use super::*;

    #[handler]
    #[defer_on_error]
    pub(super) async fn defers(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[defer_on_error(delay = "0s")]
    pub(super) async fn defers_by_zero(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[defer_on_error(delay = "1m 30s")]
    pub(super) fn defers_by_its_own_delay(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[reject_on_error]
    pub(super) async fn rejects(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[release_on_error]
    pub(super) fn releases(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[retry(max_retries = 2, base_delay = "1s", max_delay = "1h", jitter = 0)]
    pub(super) async fn retries(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[reject_on_error]
    #[retry_inline(max_retries = 2, base_delay = "1s", max_delay = "1h")]
    pub(super) async fn retries_inline(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[reject_on_error]
    #[timeout("2s")]
    pub(super) async fn times_out(_: Placed) -> Result<(), Failure> {
        std::future::pending().await
    }

    #[handler]
    #[circuit_breaker(failures = 1, open_for = "1m")]
    pub(super) async fn breaks(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[rate_limit(per_second = 0.5, burst = 2)]
    pub(super) async fn is_limited(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[reject_on_error]
    #[inbox(keep = "7d")]
    pub(super) async fn remembers(_: Placed) -> Result<(), Failure> {
        boom()
    }

    #[handler]
    #[timeout("10s", step = 3)]
    #[reject_on_error(step = -1)]
    #[retry_inline(max_retries = 1, base_delay = "0s", step = 2)]
    pub(super) async fn numbers(_: Placed) -> Result<(), Failure> {
        boom()
    }
}

/// Each handler above, beside the same written out.
fn twins() -> Vec<(Pipeline<Placed>, Pipeline<Placed>)> {
    use attributed::*;
    vec![
        (defers.into_handler(), Pipeline::new(defers::call).step(Step::defer_on_error())),
        (
            defers_by_zero.into_handler(),
            Pipeline::new(defers_by_zero::call).step(Step::defer_on_error().delay(Duration::ZERO)),
        ),
        (
            defers_by_its_own_delay.into_handler(),
            Pipeline::new(defers_by_its_own_delay::call).step(Step::defer_on_error().delay(seconds(90.0))),
        ),
        (rejects.into_handler(), Pipeline::new(rejects::call).step(Step::reject_on_error())),
        (releases.into_handler(), Pipeline::new(releases::call).step(Step::release_on_error())),
        (
            retries.into_handler(),
            Pipeline::new(retries::call)
                .step(Step::retry().max_retries(2).base_delay(SECOND).max_delay(seconds(3600.0)).jitter(0.0)),
        ),
        (
            retries_inline.into_handler(),
            Pipeline::new(retries_inline::call)
                .step(Step::reject_on_error())
                .step(Step::retry_inline().max_retries(2).base_delay(SECOND).max_delay(seconds(3600.0))),
        ),
        (
            times_out.into_handler(),
            Pipeline::new(times_out::call).step(Step::reject_on_error()).step(Step::timeout(seconds(2.0))),
        ),
        (
            breaks.into_handler(),
            Pipeline::new(breaks::call).step(Step::circuit_breaker().failures(1).open_for(seconds(60.0))),
        ),
        (is_limited.into_handler(), Pipeline::new(is_limited::call).step(Step::rate_limit(0.5).burst(2))),
        (
            remembers.into_handler(),
            Pipeline::new(remembers::call)
                .step(Step::reject_on_error())
                .step(Step::inbox().keep(seconds(604_800.0))),
        ),
        (
            numbers.into_handler(),
            Pipeline::new(numbers::call)
                .step(Step::timeout(seconds(10.0)).number(3))
                .step(Step::reject_on_error().number(-1))
                .step(Step::retry_inline().max_retries(1).base_delay(Duration::ZERO).number(2)),
        ),
    ]
}

#[test]
fn attributes_make_the_same_pipeline_as_code() {
    for (attributed, written) in twins() {
        assert_eq!(attributed.steps(), written.steps());
        assert!(!written.steps().is_empty());
    }
}

#[tokio::test]
async fn attributes_and_code_behave_the_same() {
    for (attributed, written) in twins() {
        let steps = written.steps().to_vec();
        let mut stories = vec![];
        for pipeline in [attributed, written] {
            let journal = Journal::default();
            let mail = retries(1).defer_delay(seconds(7.0));
            let world = World::of(&journal, Bus::builder().subscribe(mail, pipeline)).await;
            world.publish(["a", "b", "c"]).await;
            world.pass(500.0).await;
            stories.push((
                journal.decisions(),
                world.dead().await.len(),
                world.pending::<Placed>().await.unwrap(),
            ));
        }
        assert_eq!(stories[0], stories[1], "{steps:?}");
        assert!(stories[0].0.len() >= 3, "{steps:?}");
    }
}

// ---- order
// ---------------------------------------------------------------------------------------------------------

on_both_pumps! {
    async fn the_first_step_is_the_outermost(pump) {
        let inline = || Step::retry_inline().max_retries(2).base_delay(Duration::ZERO);
        for (steps, runs) in [
            (vec![Step::reject_on_error(), inline().into()], 3),
            (vec![inline().into(), Step::reject_on_error()], 1),
        ] {
            let world = World::new(pump, mail(), steps, |_, _| boom()).await;
            world.play().await;
            assert_eq!(world.times().len(), runs);
            assert_eq!(world.journal.outcomes(), [Outcome::Rejected]);
        }
    }

    async fn by_number_the_lowest_is_the_outermost_wherever_it_is_written(pump) {
        let inline = |number| Step::retry_inline().max_retries(2).base_delay(Duration::ZERO).number(number);
        let reject = |number| Step::reject_on_error().number(number);
        for (steps, runs) in [
            (vec![inline(20), reject(10)], 3),
            (vec![reject(10), inline(20)], 3),
            (vec![reject(7), inline(-7)], 1),
            (vec![inline(-7), reject(7)], 1),
        ] {
            let world = World::new(pump, mail(), steps, |_, _| boom()).await;
            world.play().await;
            assert_eq!(world.times().len(), runs);
            assert_eq!(world.journal.outcomes(), [Outcome::Rejected]);
        }
    }
}

#[tokio::test]
async fn numbers_on_some_steps_only_and_two_of_one_number_are_refused_by_name() {
    let start = async |steps: Vec<Step>| {
        let pipeline =
            steps.into_iter().fold(attributed::rejects::call.into_handler().named("confirm"), Pipeline::step);
        dwell::testing::start(Bus::builder().subscribe("mail", pipeline)).await.unwrap_err().to_string()
    };
    let some = start(vec![Step::reject_on_error().number(1), Step::inbox().into()]).await;
    assert_eq!(
        some,
        "the handler `confirm` has 2 steps, of which 1 are numbered: number all of them or none"
    );
    let two = start(vec![Step::reject_on_error().number(1), Step::inbox().number(1)]).await;
    assert_eq!(
        two,
        "the handler `confirm` has two steps with the number 1, `reject_on_error` and `inbox`: use different numbers"
    );
}
