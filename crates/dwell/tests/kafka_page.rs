//! The commands of the page on Kafka, taken from the page: what they write is handled, and what they read is what it says.

use dwell::prelude::*;
use dwell_conformance::servers::{kafka::KafkaServer, require};
use dwell_core::{Clock, SystemClock};
use std::{
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Notify;

const PAGE: &str = include_str!("../../../docs/transports/kafka.md");

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed", topic = "orders")]
struct Placed {
    order: u64,
}

/// One run of a handler: whose, of which message, the how manieth, and when.
type Run = (&'static str, String, u32, i64);

#[derive(Clone, Default)]
struct Seen(Arc<(Mutex<Vec<Run>>, Notify)>);

impl Seen {
    fn saw(&self, who: &'static str, cx: &Cx) {
        let run = (who, cx.id().to_string(), cx.attempt(), cx.now().0);
        self.0.0.lock().unwrap().push(run);
        self.0.1.notify_one();
    }

    /// Those of one subscription, once there are so many.
    async fn of(&self, who: &str, count: usize) -> Vec<Run> {
        let all = async {
            loop {
                let seen = self.0.0.lock().unwrap().clone();
                let own: Vec<_> = seen.into_iter().filter(|run| run.0 == who).collect();
                if own.len() >= count {
                    return own;
                }
                self.0.1.notified().await;
            }
        };
        tokio::select! {
            all = all => all,
            () = SystemClock::new().sleep(Duration::from_secs(40)) => panic!("no {count} runs of {who} after 40 s"),
        }
    }
}

/// Fails as often as it may, once.
#[handler]
#[retry(max_retries = 1, base_delay = "100ms")]
async fn mail(event: Placed, State(seen): State<Seen>, cx: Cx) -> Result<(), Failure> {
    assert_eq!(event.order, 42);
    seen.saw("mail", &cx);
    let runs = seen.0.0.lock().unwrap().iter().filter(|run| run.0 == "mail").count();
    if runs <= 2 { Err("the mail server is away".into()) } else { Ok(()) }
}

async fn books(_: Placed, State(seen): State<Seen>, cx: Cx) {
    seen.saw("books", &cx);
}

/// All blocks of the page that call `kcat`.
fn blocks() -> Vec<&'static str> {
    let blocks = PAGE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.filter(|block| block.contains("kcat ")).collect()
}

/// What a script says, at this broker in place of the page's.
fn run(script: &str, address: &str) -> String {
    assert!(script.contains("localhost:9092"), "{script}");
    let script = script.replace("localhost:9092", address);
    let output = Command::new("timeout").args(["30", "sh", "-ec", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_of_the_page_does_what_the_page_says() {
    require(&["kcat"]).unwrap();
    let server = KafkaServer::start().unwrap();
    let address = server.address();
    let url = format!("{}?partitions=1&ladder=1s,2s&session=3s", server.url());
    let seen = Seen::default();
    let wiring = Bus::builder().state(seen.clone()).subscribe("mail", mail).subscribe("books", books);
    let bus = wiring.start(&url).await.unwrap();
    let [dead, publish, delay] = blocks().try_into().expect("three blocks call `kcat`");

    // What any client writes to the topic is handled by whoever subscribed.
    run(publish, &address);
    let first = seen.of("books", 1).await.remove(0);
    let tried = seen.of("mail", 2).await;
    assert_eq!((&tried[0].1, &tried[1].1), (&first.1, &first.1), "one message, two runs");

    // A dead letter is read with all that it had, and why it is there.
    let (read, write) = dead.split_once('\n').unwrap();
    let mut said = String::new();
    while said.is_empty() {
        said = run(read, &address);
    }
    assert!(said.starts_with("0  order-42  {\"order\": 42}\n    "), "{said}");
    for header in [
        "x-rejection-reason=".to_owned(),
        "x-rejection-message=".to_owned(),
        "x-rejected-at=".to_owned(),
        "x-original-topic=orders".to_owned(),
        "x-dwell-subscription=mail".to_owned(),
        "HandledCount=2".to_owned(),
        "x-dwell-failed-count=2".to_owned(),
        format!("x-dwell-id={}", first.1),
    ] {
        assert!(said.contains(&header), "no `{header}` in {said}");
    }

    // Written back, it is tried again by the subscription that gave it up, as if for the first time.
    assert!(write.contains("the-same-id"), "{write}");
    run(&write.replace("the-same-id", &first.1), &address);
    let tried = seen.of("mail", 3).await;
    assert_eq!((&tried[2].1, tried[2].2), (&first.1, 1));

    // What is written to a delay topic comes at its time. A shorter wait, on a level of this ladder, will do.
    let sooner = delay.replace("+ 60)", "+ 3)").replace("delay-40s", "delay-1s");
    assert_eq!(sooner.len() + 2, delay.len(), "{sooner}");
    let at = run(&format!("{sooner}echo $at"), &address);
    let at: i64 = at.trim().parse().unwrap();
    let (books, mail) = (seen.of("books", 2).await, seen.of("mail", 4).await);
    for run in [&books[1], &mail[3]] {
        assert!(run.3 >= at, "early by {} ms", at - run.3);
        assert_ne!(run.1, first.1);
    }
    assert_eq!((books.len(), mail.len()), (2, 4), "what was for one came to the other, or twice");
    bus.shutdown().await.unwrap();
}
