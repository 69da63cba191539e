use super::{super::MemoryInbox, *};
use dwell_core::{Claim, Inbox, MessageId};

fn inbox() -> (MemoryInbox, VirtualClock, MessageId) {
    let clock = VirtualClock::new();
    (MemoryInbox::new(Arc::new(clock.clone())), clock, "a".into())
}

#[tokio::test]
async fn a_claim_is_exclusive_until_it_is_abandoned() {
    let (inbox, _, id) = inbox();
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
async fn a_claim_ends_with_its_lease_in_monotonic_time() {
    let (inbox, clock, id) = inbox();
    let claim = async |fence| inbox.claim("mail", &id, fence, LEASE).await.unwrap();
    assert_eq!(claim(1).await, Claim::New);
    clock.advance(LEASE - MILLI).await;
    clock.step_wall(3_600_000);
    assert_eq!(claim(2).await, Claim::Busy);
    assert_eq!(claim(1).await, Claim::New, "the same fence renews its claim");
    clock.advance(LEASE - MILLI).await;
    assert_eq!(claim(2).await, Claim::Busy);
    clock.advance(MILLI).await;
    assert_eq!(claim(2).await, Claim::New);
}

#[tokio::test]
async fn done_records_expire() {
    let (inbox, clock, id) = inbox();
    inbox.claim("mail", &id, 1, LEASE).await.unwrap();
    inbox.done("mail", &id, SECOND * 60).await.unwrap();
    inbox.abandon("mail", &id, 1).await.unwrap();
    clock.advance(SECOND * 60 - MILLI).await;
    assert_eq!(inbox.claim("mail", &id, 2, LEASE).await.unwrap(), Claim::Done);
    assert_eq!(inbox.len(), 1);
    clock.advance(MILLI).await;
    assert!(inbox.is_empty());
    assert_eq!(inbox.claim("mail", &id, 2, LEASE).await.unwrap(), Claim::New);
    inbox.done("mail", &id, Duration::MAX).await.unwrap();
    clock.advance(SECOND * 1_000_000_000).await;
    assert_eq!(inbox.claim("mail", &id, 3, LEASE).await.unwrap(), Claim::Done);
}

#[tokio::test]
async fn expired_entries_are_removed_during_calls() {
    let (inbox, clock, _) = inbox();
    for n in 0..1000 {
        let id = MessageId::from(n.to_string());
        inbox.claim("mail", &id, n, LEASE).await.unwrap();
        inbox.done("mail", &id, MILLI * 10).await.unwrap();
        clock.advance(MILLI).await;
        assert!(inbox.len() <= 10);
    }
}

#[tokio::test]
async fn the_transport_returns_one_inbox() {
    let broker = Broker::new().await;
    let id = MessageId::from("a");
    broker.memory.inbox().unwrap().done("mail", &id, LEASE).await.unwrap();
    assert_eq!(broker.memory.inbox().unwrap().claim("mail", &id, 1, LEASE).await.unwrap(), Claim::Done);
}
