//! Messages that a subscription cannot take count toward its `unacceptable_message_limit`, at which it stops until it is started
//! again. With async handlers and with blocking ones.

mod common;
use common::*;
use dwell::{
    prelude::*,
    raw::{Address, Message},
    settings::OnUnknown,
};
use dwell_engine::Status;

/// A command, in a topic of its own.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "orders.pay")]
struct Pay;

/// Two are too many.
fn strict(subscription: Subscription) -> Subscription {
    subscription.with(|settings| settings.unacceptable_message_limit = 2)
}

/// What arrives under an id, and what the handler says to it.
type Case = (fn(&str) -> Message, Answer);

fn order(id: &str) -> Message {
    Message::new(id, "orders.placed", serde_json::to_vec(&placed(42)).unwrap())
}

fn unreadable(id: &str) -> Message {
    Message::new(id, "orders.placed", "{")
}

fn stranger(id: &str) -> Message {
    Message::new(id, "orders.shipped", "{}")
}

impl World {
    async fn handle(&self, message: Message) {
        self.post(Address::topic("orders"), message).await.unwrap();
        self.run_until_idle().await;
    }

    fn status(&self) -> Vec<Status> {
        self.monitor().pumps()[0].status()
    }
}

on_both_pumps! {
    async fn at_the_limit_a_subscription_stops_until_it_is_started_again(pump) {
        let unacceptable: [Case; 5] = [
            (order, || Err(Failure::reject("no"))),
            (order, || Err(Failure::invalid("no"))),
            (order, || Err(Failure::release("no"))),
            (unreadable, || Ok(())),
            (stranger, || Ok(())),
        ];
        for (message, answer) in unacceptable {
            let world = World::new(pump, strict(mail()), [], move |_, _| answer()).await;
            world.handle(message("a")).await;
            assert_eq!(world.status(), [Status::Running]);
            world.handle(message("b")).await;
            assert_eq!(world.status(), [Status::LimitExceeded]);

            let decided = world.journal.outcomes();
            assert_eq!(decided.len(), 2, "{decided:?}");
            world.handle(message("c")).await;
            world.pass(3600.0).await;
            assert_eq!(world.journal.outcomes(), decided, "nothing runs any more");
            world.monitor().pumps()[0].restart();
            world.run_until_idle().await;
            assert!(world.journal.outcomes().len() > 2, "{decided:?}");
        }
    }

    async fn what_fails_or_waits_or_is_left_alone_does_not_count(pump) {
        let acceptable: [Case; 4] = [
            (order, || Ok(())),
            (order, boom),
            (order, || Err(Failure::defer())),
            (stranger, || Ok(())),
        ];
        for (message, answer) in acceptable {
            let lenient = strict(retries(1)).on_unknown(OnUnknown::Skip);
            let world = World::new(pump, lenient, [], move |_, _| answer()).await;
            for id in ["a", "b", "c"] {
                world.handle(message(id)).await;
            }
            world.pass(60.0).await;
            assert!(world.journal.outcomes().len() >= 3);
            assert_eq!(world.status(), [Status::Running]);
        }
    }

    async fn commands_count_as_events_do(pump) {
        let wiring = match pump {
            Pump::Async => Bus::builder().handle_as(strict(named("cashier")), async |_: Pay| Err::<(), _>(Failure::reject("no"))),
            Pump::Blocking => Bus::builder().handle_as(strict(named("cashier")), |_: Pay| Err::<(), _>(Failure::reject("no"))),
        };
        let world = World::of(&Journal::default(), wiring).await;
        for _ in 0..3 {
            world.bus.send(Pay).await.unwrap();
        }
        world.run_until_idle().await;
        assert_eq!((world.status(), world.dead().await.len()), (vec![Status::LimitExceeded], 2));
    }
}
