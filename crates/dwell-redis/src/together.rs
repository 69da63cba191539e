//! Batching: concurrent requests go to the server together. Requests that arrive while one group is
//! in flight form the next group.

use crate::store::Store;
use dwell_core::BoxFuture;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{mpsc, oneshot};

/// Maximum size of a group.
const MOST: usize = 500;

struct Order<T, A> {
    batch: Vec<T>,
    answer: oneshot::Sender<Vec<A>>,
}

/// Collects requests, and handles them in groups.
pub(crate) struct Together<T, A> {
    store: Weak<Store>,
    work: Work<T, A>,
    orders: Mutex<mpsc::UnboundedSender<Order<T, A>>>,
}

/// Handles a group, and returns one answer each.
pub(crate) type Work<T, A> = fn(Arc<Store>, Vec<T>) -> BoxFuture<'static, Vec<A>>;

impl<T: Send + 'static, A: Send + 'static> Together<T, A> {
    pub(crate) fn new(store: &Arc<Store>, work: Work<T, A>) -> Self {
        let store = Arc::downgrade(store);
        Self { orders: Mutex::new(start(&store, work)), store, work }
    }

    /// Returns one answer each; `None` if the task was cancelled and the outcome is unknown.
    pub(crate) async fn ask(&self, batch: Vec<T>) -> Option<Vec<A>> {
        let (answer, answers) = oneshot::channel();
        self.put(Order { batch, answer });
        answers.await.ok()
    }

    /// Sends requests to the task. It ends with the runtime that it was started in, and is then
    /// started again.
    fn put(&self, order: Order<T, A>) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(unsent) = orders.send(order) {
            *orders = start(&self.store, self.work);
            // If the new task ends at once as well, the caller notices that there is no answer.
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

/// Ends when the last sender is dropped.
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
            // The caller may have been dropped.
            let _ = answer.send(answers.by_ref().take(count).collect());
        }
    }
}
