//! Steps of one's own.

use crate::common::*;
use dwell::{Next, Step, prelude::*};
use dwell_core::Outcome;
use std::sync::{Arc, Mutex};

on_both_pumps! {
    async fn it_may_run_what_is_inside_twice(pump) {
        let twice = Step::around("twice", |_, next: Next| async move {
            next.run().await?;
            next.run().await
        });
        let world = World::new(pump, mail(), [twice], |_, _| Ok(())).await;
        world.play().await;
        assert_eq!(world.times(), [0.0, 0.0]);
        assert_eq!(world.journal.outcomes(), [Outcome::Handled], "of one delivery");
    }

    async fn it_may_run_what_is_inside_not_at_all(pump) {
        let closed = Step::around("closed", |cx: Cx, next: Next| async move {
            if cx.attempt() == 1 {
                return Err(Failure::defer().after(seconds(8.0)));
            }
            next.run().await
        });
        let world = World::new(pump, mail(), [closed], |_, _| Ok(())).await;
        world.play().await;
        assert_eq!(world.times(), [8.0]);
        assert_eq!(world.journal.outcomes(), [Outcome::Deferred, Outcome::Handled]);
    }

    async fn it_may_change_the_outcome_either_way(pump) {
        let forgiving = Step::around("forgiving", |_, next: Next| async move {
            let _ = next.run().await;
            Ok(())
        });
        let world = World::new(pump, mail(), [forgiving], |_, _| Err(Failure::reject("no"))).await;
        world.play().await;
        assert_eq!(world.journal.outcomes(), [Outcome::Handled]);

        let strict = Step::around("strict", |_, next: Next| async move {
            next.run().await?;
            Err(Failure::reject("too good to be true"))
        });
        let world = World::new(pump, mail(), [strict], |_, _| Ok(())).await;
        world.play().await;
        assert_eq!(world.times(), [0.0]);
        assert_eq!(world.journal.outcomes(), [Outcome::Rejected]);
    }

    async fn it_sees_what_came_of_it_and_a_panic_inside_as_a_failure(pump) {
        let seen = Arc::new(Mutex::new(vec![]));
        let log = seen.clone();
        let audit = Step::around("audit", move |cx: Cx, next: Next| {
            let log = log.clone();
            async move {
                let outcome = next.run().await;
                let said = outcome.as_ref().err().map(ToString::to_string);
                log.lock().unwrap().push((cx.id().to_string(), cx.attempt(), said));
                outcome
            }
        });
        let world = World::new(pump, mail(), [audit], |run, _| match run.number {
            1 => panic!("planned"),
            2 => Err(Failure::defer()),
            _ => Ok(()),
        }).await;
        world.play().await;
        let expected = [
            ("a".to_owned(), 1, Some("failed: the handler panicked: planned".to_owned())),
            ("a".to_owned(), 2, Some("deferred".to_owned())),
            ("a".to_owned(), 3, None),
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    async fn its_own_panic_is_a_failure_of_the_message(pump) {
        let careless = Step::around("careless", |cx: Cx, next: Next| async move {
            assert!(cx.attempt() > 1, "planned");
            next.run().await
        });
        let world = World::new(pump, mail(), [careless], |_, _| Ok(())).await;
        world.play().await;
        assert_eq!(world.times(), [5.0]);
        assert_eq!(world.journal.outcomes(), [Outcome::Failed, Outcome::Handled]);
    }

    async fn several_run_from_the_outside_to_the_inside_and_back(pump) {
        let order = Arc::new(Mutex::new(vec![]));
        let step = |name: &'static str| {
            let order = order.clone();
            Step::around(name, move |_, next: Next| {
                let order = order.clone();
                async move {
                    order.lock().unwrap().push(format!("into {name}"));
                    let outcome = next.run().await;
                    order.lock().unwrap().push(format!("out of {name}"));
                    outcome
                }
            })
        };
        let world = World::new(pump, mail(), [step("a"), step("b")], |_, _| Ok(())).await;
        world.play().await;
        assert_eq!(*order.lock().unwrap(), ["into a", "into b", "out of b", "out of a"]);
    }
}
