//! Runs of blocking handlers, on threads of their own. In a process of its own, because the subscriber is for all threads.

#[path = "common/spans.rs"]
mod spans;

use dwell::{Step, prelude::*, testing};
use spans::{Spans, is_child};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "reports.print")]
struct Print;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "reports.file")]
struct File;

fn print(_: Print, cx: Cx) -> Result<(), Failure> {
    tracing::info_span!("at the printer").in_scope(|| cx.send(File).wait())?;
    Ok(())
}

async fn file(_: File) {}

#[tokio::test]
async fn a_blocking_run_has_one_span_and_what_happens_on_its_thread_belongs_to_it() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.subscriber()).unwrap();
    let pipeline = dwell::Pipeline::new(print).step(Step::retry_inline());
    let bus = testing::start(Bus::builder().handle(pipeline).handle(file)).await.unwrap();
    bus.send(Print).await.unwrap();
    // A thread lets go of its span a moment after its run has ended.
    while spans.named("process reports.file").is_empty() || spans.named("process reports.print").is_empty() {
        bus.run_until_idle().await;
        tokio::task::yield_now().await;
    }
    let chain = [
        "send reports.print",
        "process reports.print",
        "at the printer",
        "send reports.file",
        "process reports.file",
    ];
    let chain: Vec<_> = chain.iter().map(|name| spans.one(name)).collect();
    for pair in chain.windows(2) {
        assert!(is_child(&pair[1], &pair[0]), "{} follows from {}", pair[1].name, pair[0].name);
    }
}
