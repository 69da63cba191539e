use dwell::prelude::*;

/// Lacks `#[derive(Event)]`.
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[timeout("10s")]
async fn confirm(message: OrderPlaced, _: Cx) -> Result<(), Failure> {
    println!("{}", message.order);
    Ok(())
}

fn main() {}
