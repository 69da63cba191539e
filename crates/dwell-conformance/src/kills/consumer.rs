//! A worker that handles messages.

use super::{
    journal::{Entry, lease},
    load::Load,
    worker::{Post, patiently},
};
use dwell_core::{Message, Result};
use dwell_engine::{Context, Work};
use std::sync::Arc;

pub(super) async fn work(post: &Post) -> Result<()> {
    for settings in post.load.subscriptions() {
        let (load, journal, clock) = (post.load.clone(), post.journal.clone(), post.seams.clock.clone());
        let of = Load::place(&settings.topic, &settings.name);
        let told = settings.clone();
        let handler = move |message: Message, context: Context| {
            let (of, lease, fate) = (of.clone(), lease(context.lease), load.fate(&message, &told));
            let altered = load.is_altered(&message);
            let (journal, clock) = (journal.clone(), clock.clone());
            async move {
                journal.write([Entry::Started { of: of.clone(), lease, altered }]);
                if !fate.takes.is_zero() {
                    clock.sleep(fate.takes).await;
                }
                journal.write([Entry::Ended { of, lease, ending: fate.ending }]);
                fate.verdict()
            }
        };
        let work = Work::Async(Arc::new(handler));
        let subscribe = async || post.engine.subscribe(settings.clone(), work.clone()).await;
        patiently(&*post.seams.clock, subscribe).await?;
    }
    post.told_to_stop().await;
    Ok(())
}
