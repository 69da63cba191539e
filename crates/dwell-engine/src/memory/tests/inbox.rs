use super::{super::MemoryInbox, *};
use dwell_core::{Claim, Inbox, MessageId};

fn inbox() -> (MemoryInbox, VirtualClock, MessageId) {
    let clock = VirtualClock::new();
    (MemoryInbox::new(Arc::new(clock.clone())), clock, "a".into())
}

#[tokio::test]
async fn a_claim_is_exclusive_until_it_is_abandoned_and_its_own_fence_may_claim_again() {
    let (inbox, _, id) = inbox();
    let claim = async |subscription, fence| inbox.claim(subscription, &id, fence, LEASE).await.unwrap();
    assert_eq!(claim("mail", 1).await, Claim::New);
    assert_eq!(claim("mail", 1).await, Claim::New);
    assert_eq!(claim("mail", 2).await, Claim::Busy);
    assert_eq!(claim("stock", 2).await, Claim::New, "subscriptions share nothing");
    inbox.abandon("mail", &id, 2).await.unwrap();
    assert_eq!(claim("mail", 2).await, Claim::Busy, "it was not theirs to abandon");
    inbox.abandon("mail", &id, 1).await.unwrap();
    assert_eq!(claim("mail", 2).await, Claim::New);
}

#[tokio::test]
async fn a_claim_ends_with_its_lease_and_not_when_the_wall_clock_is_set() {
    let (inbox, clock, id) = inbox();
    let claim = async |fence| inbox.claim("mail", &id, fence, LEASE).await.unwrap();
    assert_eq!(claim(1).await, Claim::New);
    clock.advance(LEASE - MILLI).await;
    clock.step_wall(3_600_000);
    assert_eq!(claim(2).await, Claim::Busy);
    assert_eq!(claim(1).await, Claim::New, "which renews it");
    clock.advance(LEASE - MILLI).await;
    assert_eq!(claim(2).await, Claim::Busy);
    clock.advance(MILLI).await;
    assert_eq!(claim(2).await, Claim::New);
}

#[tokio::test]
async fn what_is_done_stays_done_for_as_long_as_it_is_kept_and_is_then_forgotten() {
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
async fn memory_is_given_back_as_fast_as_it_is_taken() {
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
async fn the_transport_has_one_inbox() {
    let broker = Broker::new().await;
    let id = MessageId::from("a");
    broker.memory.inbox().unwrap().done("mail", &id, LEASE).await.unwrap();
    assert_eq!(broker.memory.inbox().unwrap().claim("mail", &id, 1, LEASE).await.unwrap(), Claim::Done);
}
