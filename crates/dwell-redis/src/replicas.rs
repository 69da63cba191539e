//! Waiting until replicas have what was written.
//!
//! `WAIT` keeps everything waiting that comes behind it on the same connection, and where a replica is away that is long: leases would
//! run out. So it has a connection of its own. It is about that connection's own last write, so a small one goes before it; whatever
//! else the server has written before, it has passed on before that. Those who wait at the same time wait together.

use crate::{keys, link::Link, script::MARK, store::Store, together::Together};
use dwell_core::{Error, ErrorKind, Result};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};
use tokio::sync::OnceCell;

#[derive(Default)]
pub(crate) struct Replicas {
    link: OnceCell<Link>,
    waits: OnceLock<Together<String, Result<()>>>,
}

impl Replicas {
    /// Waits until as many replicas as `replicas` asks for have what was written to the server of `key`.
    pub(crate) async fn wait(&self, store: &Arc<Store>, key: &str) -> Result<()> {
        let waits = self.waits.get_or_init(|| {
            Together::new(store, |store, keys| Box::pin(async move { wait_all(&store, keys).await }))
        });
        let mark = keys::mark(&store.link.settings.prefix, key);
        waits.ask(vec![mark]).await.and_then(|mut answers| answers.pop()).unwrap_or_else(|| {
            let text = "whoever waited for replicas was stopped: it may or may not be confirmed";
            Err(Error::new(ErrorKind::Timeout, text))
        })
    }
}

async fn wait_all(store: &Store, marks: Vec<String>) -> Vec<Result<()>> {
    let opened = store.replicas.link.get_or_try_init(|| Link::open(store.link.settings.clone())).await;
    let link = match opened {
        Ok(link) => link,
        // It is stored, and nobody knows whether replicas have it.
        Err(error) => return marks.iter().map(|_| Err(error.again())).collect(),
    };
    // One server has all of them.
    let of = |mark: &String| if link.is_cluster() { mark.clone() } else { String::new() };
    let servers: BTreeMap<String, &String> = marks.iter().map(|mark| (of(mark), mark)).collect();
    let waits = servers.iter().map(|(server, mark)| async move { (server, wait(link, mark).await) });
    let answers: BTreeMap<_, _> = futures_util::future::join_all(waits).await.into_iter().collect();
    let answer = |mark| match &answers[&of(mark)] {
        Ok(()) => Ok(()),
        Err(error) => Err(error.again()),
    };
    marks.iter().map(answer).collect()
}

async fn wait(link: &Link, mark: &str) -> Result<()> {
    link.run(&MARK, |command| _ = command.arg(1).arg(mark)).await?;
    let (wanted, have) = (link.settings.replicas, link.wait(mark).await?);
    if have >= i64::from(wanted) {
        return Ok(());
    }
    let text = format!(
        "it is stored at {}, and not confirmed by {wanted} replicas as `replicas` asks: it may be lost if the server is. Try again to \
         have it confirmed: it is not stored twice",
        link.settings.place()
    );
    Err(Error::new(ErrorKind::Timeout, text))
}
