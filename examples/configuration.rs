//! Settings from `dwell.toml` and the environment.
//!
//! The example prints the effective settings with secrets hidden, then three mistakes with the
//! errors that explain them. A handler then uses the settings of the file instead of those in code:
//! it runs twice, although the code allows eleven runs.

use dwell::{Config, prelude::*, raw::Stage::DeadLettered, settings::RetryPolicy};
use std::{env, time::Duration};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// In a project this is a file. `Config::load("dwell.toml")` reads it and the environment.
const FILE: &str = r#"
[transport]
url = "memory://?capacity=1000"

[retry]                            # for all types that say nothing else
max_retries = 8
base_delay = "5s"

[[retry.override]]                 # for one type
type = "examples.import"
max_retries = 1

[[route]]                          # another topic than its own
type = "examples.import"
topic = "examples.imports"

[[subscription]]                   # over what the code says about this one
topic = "examples.imports"
name = "importer"
concurrency = 4
handler_timeout = "2m"
"#;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "examples.import")]
struct Import {
    file: String,
}

async fn import(message: Import, State(tell): State<UnboundedSender<u32>>, cx: Cx) -> Result<(), Failure> {
    println!("{}: run {}, from the topic {}", message.file, cx.attempt(), cx.topic());
    assert_eq!(cx.topic(), "examples.imports");
    let _ = tell.send(cx.attempt());
    Err("it is not a file of ours".into())
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    // `DWELL_SECTION__KEY` overrides a key of the file. A program passes `std::env::vars()`.
    let mut variables = vec![("DWELL_RETRY__BASE_DELAY".to_owned(), "50ms".to_owned())];
    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok());
    variables.extend(url.map(|url| ("DWELL_TRANSPORT__URL".to_owned(), url)));
    let config = Config::from_toml(FILE)?.with_env(variables)?;
    println!("{config}");
    assert_eq!(config.retry.policy.base_delay, Duration::from_millis(50), "the environment beats the file");

    let secret = Config::from_toml("[transport]\nurl = \"redis://user:pa55word@localhost:6379\"")?;
    assert!(!secret.to_string().contains("pa55word"), "what is printed shows no secret");

    println!("what is refused:");
    for slip in [
        "[retry]\nmax_retrys = 3",
        "[retry]\nbase_delay = 5",
        "[[subscription]]\ntopic = \"examples.imports\"\nname = \"importer\"\nconcurency = 4",
    ] {
        println!("  {}", Config::from_toml(slip).expect_err("it means nothing"));
    }

    // Code overrides the general part of the file. The parts of the file for a type or for this
    // subscription override code.
    let (tell, mut told) = unbounded_channel::<u32>();
    let retry =
        RetryPolicy { max_retries: 10, base_delay: Duration::from_millis(50), ..RetryPolicy::default() };
    let bus = Bus::builder()
        .config(config)
        .state(tell)
        .handle_as(Subscription::named("importer").retry(retry), import)
        .start_configured()
        .await?;
    let sent = bus.send(Import { file: "orders.csv".into() }).await?;
    assert_eq!((told.recv().await, told.recv().await), (Some(1), Some(2)));
    let dead = loop {
        let seen = bus.monitor().list(1000).await?;
        match seen.into_iter().find(|seen| seen.id == sent.id && seen.stage == DeadLettered) {
            Some(seen) => break seen,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    println!("given up: {}", dead.last_error.as_deref().unwrap_or_default());
    bus.shutdown().await
}
