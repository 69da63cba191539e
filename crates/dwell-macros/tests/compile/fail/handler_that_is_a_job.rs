use dwell::prelude::*;

#[derive(Command, Serialize, Deserialize)]
struct Resize {
    width: u32,
}

#[handler]
#[timeout("10s")]
async fn resize(message: Resize) -> Result<u32, Failure> {
    Ok(message.width)
}

fn main() {}
