//! Structs and enums are messages. The default name is that of the package and the type.
#![deny(warnings)]

use dwell::{Command, Event, Json, Message};
use serde::{Deserialize, Serialize};

mod deep {
    pub mod inside {
        use super::super::*;

        #[derive(Event, Serialize, Deserialize)]
        pub struct OrderPlaced {
            pub order: u64,
        }
    }
}

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge", topic = "payments", codec = Json)]
enum Charge {
    Card { order: u64, cents: u64 },
    Voucher(String),
    Nothing,
}

#[derive(Event, Serialize, Deserialize)]
#[message(name = "shop.paid")]
#[message(topic = "shop")]
struct OrderPaid(u64);

fn is_command<M: Command>() {}

fn is_event<M: Event>() {}

fn main() {
    is_command::<Charge>();
    is_event::<deep::inside::OrderPlaced>();
    is_event::<OrderPaid>();

    let default = deep::inside::OrderPlaced::NAME;
    assert_eq!(default, concat!(env!("CARGO_PKG_NAME"), ".order_placed"));
    assert_eq!(deep::inside::OrderPlaced::TOPIC, default);
    assert_eq!((Charge::NAME, Charge::TOPIC), ("payments.charge", "payments"));
    assert_eq!((OrderPaid::NAME, OrderPaid::TOPIC), ("shop.paid", "shop"));

    let _ = [Charge::Card { order: 42, cents: 999 }, Charge::Voucher("V".to_owned()), Charge::Nothing];
    let _ = OrderPaid(deep::inside::OrderPlaced { order: 42 }.order);
}
