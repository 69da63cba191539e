use dwell::prelude::*;
use std::rc::Rc;

#[derive(Command, Serialize, Deserialize)]
struct Resize {
    width: u32,
}

#[handler]
async fn resize(message: Resize, cx: Cx) -> Result<(), Failure> {
    let width = Rc::new(message.width);
    cx.send(Resize { width: *width }).await?;
    println!("{width}");
    Ok(())
}

fn main() {}
