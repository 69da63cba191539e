//! What is asked for at the same time goes to the server together: whatever came while the last group was on its way is the next.

use crate::store::Store;
use dwell_core::BoxFuture;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{mpsc, oneshot};

/// How many orders go together at most.
const MOST: usize = 500;

struct Order<T, A> {
    batch: Vec<T>,
    answer: oneshot::Sender<Vec<A>>,
}

/// One who takes orders, and has them done a group at a time.
pub(crate) struct Together<T, A> {
    store: Weak<Store>,
    work: Work<T, A>,
    orders: Mutex<mpsc::UnboundedSender<Order<T, A>>>,
}

/// Does all of a group, and gives one answer each.
pub(crate) type Work<T, A> = fn(Arc<Store>, Vec<T>) -> BoxFuture<'static, Vec<A>>;

impl<T: Send + 'static, A: Send + 'static> Together<T, A> {
    pub(crate) fn new(store: &Arc<Store>, work: Work<T, A>) -> Self {
        let store = Arc::downgrade(store);
        Self { orders: Mutex::new(start(&store, work)), store, work }
    }

    /// One answer each; `None` if whoever does it was stopped, and nobody knows whether it was done.
    pub(crate) async fn ask(&self, batch: Vec<T>) -> Option<Vec<A>> {
        let (answer, answers) = oneshot::channel();
        self.put(Order { batch, answer });
        answers.await.ok()
    }

    /// Whoever does it ends with the runtime that it was started in: then there is another.
    fn put(&self, order: Order<T, A>) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(unsent) = orders.send(order) {
            *orders = start(&self.store, self.work);
            // If that one ends at once as well, whoever asks sees that nobody answers.
            let _ = orders.send(unsent.0);
        }
    }
}

fn start<T: Send + 'static, A: Send + 'static>(
    store: &Weak<Store>,
    work: Work<T, A>,
) -> mpsc::UnboundedSender<Order<T, A>> {
    let (orders, inbox) = mpsc::unbounded_channel();
    tokio::spawn(serve(store.clone(), inbox, work));
    orders
}

/// Ends when nobody can ask any more.
async fn serve<T, A>(store: Weak<Store>, mut inbox: mpsc::UnboundedReceiver<Order<T, A>>, work: Work<T, A>) {
    let mut group = vec![];
    while inbox.recv_many(&mut group, MOST).await > 0 {
        let Some(store) = store.upgrade() else { return };
        let (mut batch, mut waiting) = (vec![], vec![]);
        for order in group.drain(..) {
            waiting.push((order.batch.len(), order.answer));
            batch.extend(order.batch);
        }
        let mut answers = work(store, batch).await.into_iter();
        for (count, answer) in waiting {
            // Whoever has gone does not want to know.
            let _ = answer.send(answers.by_ref().take(count).collect());
        }
    }
}
