use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
async fn generic<T>(message: T)
where
    T: Send,
{
    drop(message);
}

#[handler]
unsafe fn dangerous(message: OrderPlaced) {
    println!("{}", message.order);
}

#[handler]
extern "C" fn foreign(message: OrderPlaced) {
    println!("{}", message.order);
}

#[handler]
const fn constant(message: OrderPlaced) -> u64 {
    message.order
}

#[handler]
async fn borrowing(message: &OrderPlaced) {
    println!("{}", message.order);
}

#[handler(step = 1)]
async fn with_settings(message: OrderPlaced) {
    println!("{}", message.order);
}

#[handler]
struct NoFunction;

fn main() {}
