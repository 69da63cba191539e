use super::*;
use dwell_core::{
    Answer, BoxFuture, Change, Count, Ledger, MessageId, Of, Oldest, Page, Record, RecordQuery, Text,
};

/// A ledger without a lookup for the oldest message, so that the default search is used.
struct Searched(Arc<dyn Ledger>);

impl Ledger for Searched {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        self.0.get(id)
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        self.0.list(query)
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        self.0.counts()
    }

    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>> {
        self.0.change(id, of, change, by)
    }
}

/// Returns the oldest messages, after checking that lookup and search agree.
async fn oldest(broker: &Broker) -> Vec<(String, Timestamp)> {
    let ledger = broker.memory.ledger().unwrap();
    let looked_up = ledger.oldest_ready().await.unwrap();
    assert_eq!(Searched(ledger).oldest_ready().await.unwrap(), looked_up);
    let name = |of: &Oldest| format!("{}/{}", of.topic, of.subscription.as_ref().unwrap_or(&Text::default()));
    looked_up.iter().map(|of| (name(of), of.due)).collect()
}

#[tokio::test]
async fn the_oldest_ready_message_is_the_one_due_first() {
    let broker = Broker::new().await;
    let start = broker.now();
    assert_eq!(oldest(&broker).await, []);
    for seconds in [50, 20, 40, 10, 30] {
        let id = format!("after-{seconds}");
        let to = Address::subscription("orders", "mail");
        broker.send(Envelope { to, ..order(&id) }.due(after(SECOND * seconds))).await.unwrap();
    }
    assert_eq!(oldest(&broker).await, [], "pending messages are not ready");
    broker.clock.advance(SECOND * 60).await;
    assert_eq!(oldest(&broker).await, [("orders/mail".to_owned(), start.after(SECOND * 10))]);

    broker.send(order("now")).await.unwrap();
    let taken = broker.mail.receive(1, Duration::ZERO, None).await.unwrap();
    let both = [
        ("orders/mail".to_owned(), start.after(SECOND * 20)),
        ("orders/stock".to_owned(), start.after(SECOND * 60)),
    ];
    assert_eq!(oldest(&broker).await, both, "leased messages are not ready");
    release_all(&broker.mail, taken).await;
    assert_eq!(oldest(&broker).await[0].1, start.after(SECOND * 10));
}
