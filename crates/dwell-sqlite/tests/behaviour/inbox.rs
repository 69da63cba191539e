use super::*;
use dwell_core::{Claim, Inbox, MessageId};

async fn inbox() -> (Arc<dyn Inbox>, Broker, MessageId) {
    let broker = Broker::new().await;
    (broker.sqlite.inbox().unwrap(), broker, "a".into())
}

fn remembered(broker: &Broker) -> i64 {
    broker.file.connection().query_row("SELECT count(*) FROM inbox", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn claim_is_exclusive_to_its_fence_until_abandoned() {
    let (inbox, _broker, id) = inbox().await;
    let claim = async |subscription, fence| inbox.claim(subscription, &id, fence, LEASE).await.unwrap();
    assert_eq!(claim("mail", 1).await, Claim::New);
    assert_eq!(claim("mail", 1).await, Claim::New);
    assert_eq!(claim("mail", 2).await, Claim::Busy);
    assert_eq!(claim("stock", 2).await, Claim::New, "subscriptions are independent");
    inbox.abandon("mail", &id, 2).await.unwrap();
    assert_eq!(claim("mail", 2).await, Claim::Busy, "another fence cannot abandon the claim");
    inbox.abandon("mail", &id, 1).await.unwrap();
    assert_eq!(claim("mail", 2).await, Claim::New);
}

#[tokio::test]
async fn claim_ends_with_its_lease() {
    let (inbox, broker, id) = inbox().await;
    let claim = async |fence| inbox.claim("mail", &id, fence, LEASE).await.unwrap();
    assert_eq!(claim(1).await, Claim::New);
    broker.clock.advance(LEASE - MILLI).await;
    assert_eq!(claim(2).await, Claim::Busy);
    assert_eq!(claim(1).await, Claim::New, "claiming again renews the lease");
    broker.clock.advance(LEASE - MILLI).await;
    assert_eq!(claim(2).await, Claim::Busy);
    broker.clock.advance(MILLI).await;
    assert_eq!(claim(2).await, Claim::New);
}

#[tokio::test]
async fn done_is_remembered_for_its_retention() {
    let (inbox, broker, id) = inbox().await;
    inbox.claim("mail", &id, 1, LEASE).await.unwrap();
    inbox.done("mail", &id, SECOND * 60).await.unwrap();
    inbox.abandon("mail", &id, 1).await.unwrap();
    broker.clock.advance(SECOND * 60 - MILLI).await;
    assert_eq!(inbox.claim("mail", &id, 2, LEASE).await.unwrap(), Claim::Done);
    assert_eq!(remembered(&broker), 1);
    broker.clock.advance(MILLI).await;
    assert_eq!(inbox.claim("mail", &id, 2, LEASE).await.unwrap(), Claim::New);
    inbox.done("mail", &id, Duration::MAX).await.unwrap();
    broker.clock.advance(SECOND * 1_000_000_000).await;
    assert_eq!(inbox.claim("mail", &id, 3, LEASE).await.unwrap(), Claim::Done);
}

#[tokio::test]
async fn expired_inbox_rows_are_removed_from_the_file() {
    let (inbox, broker, _) = inbox().await;
    for n in 0..1200 {
        inbox.done("mail", &MessageId::from(n.to_string()), SECOND).await.unwrap();
    }
    inbox.done("mail", &"kept".into(), SECOND * 3600).await.unwrap();
    assert_eq!(remembered(&broker), 1201);
    broker.clock.advance(SECOND * 120).await;
    // The next calls also tidy the file.
    for _ in 0..3 {
        assert_eq!(inbox.claim("mail", &"kept".into(), 1, LEASE).await.unwrap(), Claim::Done);
    }
    broker.clock.idle().await;
    assert_eq!(remembered(&broker), 1);
}

#[tokio::test]
async fn inbox_handles_share_one_inbox() {
    let broker = Broker::new().await;
    let id = MessageId::from("a");
    broker.sqlite.inbox().unwrap().done("mail", &id, LEASE).await.unwrap();
    assert_eq!(broker.sqlite.inbox().unwrap().claim("mail", &id, 1, LEASE).await.unwrap(), Claim::Done);
}
