//! Redis as the store of another broker: it records sends with chosen ids, first as `sending` and
//! then as `sent`.

mod stage;

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{Changed, Due, Envelope, ErrorKind, OnConflict, Result, Scheduler, Sent, Transport};
use stage::{PATIENCE, connect, order, said, subscribed};
use std::sync::Arc;

async fn begin(scheduler: &Arc<dyn Scheduler>, envelope: &Envelope) -> Result<bool, ErrorKind> {
    let begun = scheduler.begin_send(vec![envelope.clone()]).await.remove(0);
    begun.map(|sent| sent.duplicate).map_err(|error| error.kind())
}

#[tokio::test]
async fn a_recorded_id_is_a_duplicate_once_its_send_is_confirmed() {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let _consumer = subscribed(&redis).await;
    let scheduler = redis.scheduler().unwrap();
    let first = order("a").once(OnConflict::Fail);
    let mut other = first.clone();
    other.message.body = "other".into();

    assert_eq!(begin(&scheduler, &first).await, Ok(false));
    assert_eq!(begin(&scheduler, &other).await, Err(ErrorKind::Conflict));
    scheduler.end_send(vec![(first.clone(), None)]).await.unwrap();
    assert_eq!(begin(&scheduler, &other).await, Ok(false), "the broker has refused it");
    scheduler.end_send(vec![(other.clone(), Some(Sent::default()))]).await.unwrap();
    assert_eq!(begin(&scheduler, &other).await, Ok(true));
    assert_eq!(begin(&scheduler, &first).await, Err(ErrorKind::Conflict));
    assert_eq!(scheduler.cancel(&"a".into()).await.unwrap(), Changed::TooLate);

    let twice = order("c").once(OnConflict::Fail);
    assert_eq!(begin(&scheduler, &twice).await, Ok(false));
    assert_eq!(begin(&scheduler, &twice).await, Ok(false), "the outcome of the send is unknown");
    scheduler.end_send(vec![(twice.clone(), None)]).await.unwrap();
    let mut changed = twice;
    changed.message.body = "other".into();
    assert_eq!(begin(&scheduler, &changed).await, Err(ErrorKind::Conflict), "the first send is in doubt");

    let later = |envelope: &Envelope| vec![envelope.clone().due(Due::After(PATIENCE * 100))];
    assert!(
        scheduler.schedule(later(&other)).await.remove(0).unwrap().duplicate,
        "it was sent without delay"
    );
    let waiting = order("b").once(OnConflict::Fail);
    let due = scheduler.schedule(later(&waiting)).await.remove(0).unwrap().due;
    let begun = scheduler.begin_send(vec![waiting]).await.remove(0).unwrap();
    assert_eq!(begun, Sent { due, duplicate: true }, "it is pending");
}

/// No script blocks the server for long: see `accept.rs`, which moves up to 256 KiB.
#[tokio::test]
async fn a_batch_of_large_messages_is_recorded_by_several_scripts() {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let _consumer = subscribed(&redis).await;
    let scheduler = redis.scheduler().unwrap();
    let large = |n: usize| {
        let mut envelope = order(&format!("m{n}")).once(OnConflict::Fail);
        envelope.message.body = vec![b'x'; 100 << 10].into();
        envelope
    };
    let batch: Vec<_> = (0..10).map(large).collect();
    // From now on the server knows the script.
    scheduler.begin_send(vec![large(10)]).await.remove(0).unwrap();
    let scripts = || {
        let stats = said(&server, &["info", "commandstats"]);
        let calls = stats.split_once("cmdstat_evalsha:calls=").and_then(|(_, rest)| rest.split_once(','));
        calls.unwrap_or_else(|| panic!("{stats}")).0.parse::<usize>().unwrap()
    };
    let before = scripts();
    let begun = scheduler.begin_send(batch.clone()).await.into_iter().collect::<Result<Vec<_>>>().unwrap();
    assert_eq!((begun.len(), scripts() - before), (10, 5), "two fit into one script");
    let ended = batch.iter().map(|envelope| (envelope.clone(), Some(Sent::default())));
    scheduler.end_send(ended.collect()).await.unwrap();
    assert_eq!(scripts() - before, 10);
    for envelope in batch {
        assert_eq!(begin(&scheduler, &envelope).await, Ok(true));
    }
}
