//! A header whose name is not valid UTF-8, as clients in other languages can write it.

mod rig;

use dwell_core::{OnMissing, Subscription, Transport as _};
use rig::scene::{SECOND, Scene};
use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    panic,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Returns headers with such a header in the middle.
fn with_a_broken_one(before: &str, after: &str) -> [OsString; 3] {
    [before.into(), OsString::from_vec(b"caf\xe9=1".to_vec()), after.into()]
}

/// Counts unexpected panics in this process from now on.
fn count_panics() -> &'static AtomicUsize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            COUNT.fetch_add(1, Ordering::SeqCst);
            before(panic);
        }));
    });
    &COUNT
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_record_keeps_all_headers_except_the_unreadable_one() {
    let panics = count_panics();
    let scene = Scene::new().await;
    let target = scene.topic("orders").await;
    let relay = scene.relay();
    let level = scene.delay_topic("1s");
    scene.wait_for(&level).await;
    let headers = with_a_broken_one(&format!("x-target-topic={target}"), "x-process-at=5");
    assert!(scene.try_write_raw(&level, "k", headers, "odd"));
    let parked = scene.read(&scene.delay_topic("parked"), 1).await.remove(0);
    assert_eq!((parked.1.as_str(), parked.3.as_str()), ("k", "odd"));
    let start = format!("x-target-topic={target},x-process-at=5,x-original-topic={level},");
    assert!(parked.2.starts_with(&start), "{}", parked.2);
    assert!(parked.2.contains("the name of one of its headers is not valid UTF-8"), "{}", parked.2);
    relay.stop().await;
    assert_eq!(panics.load(Ordering::SeqCst), 0, "a panic was printed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_received_message_keeps_all_headers_except_the_unreadable_one() {
    let panics = count_panics();
    let scene = Scene::new().await;
    let mail = Subscription::new(format!("orders-{}", scene.mark), "mail");
    scene.kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let headers = with_a_broken_one("x-dwell-id=order-42", "tag=one");
    assert!(scene.try_write_raw(&mail.topic, "k", headers, "odd"));
    let consumer = scene.kafka.consumer(mail).await.unwrap();
    let delivery = consumer.receive(1, SECOND * 30, None).await.unwrap().pop().expect("the message arrives");
    let problem = delivery.problem.as_deref();
    assert_eq!(problem, Some("the name of one of its headers is not valid UTF-8"));
    assert_eq!(&*delivery.message.id.0, "order-42");
    assert_eq!(delivery.message.headers.get("tag").map(|tag| &tag[..]), Some(&b"one"[..]));
    scene.kafka.close().await.unwrap();
    assert_eq!(panics.load(Ordering::SeqCst), 0, "a panic was printed");
}
