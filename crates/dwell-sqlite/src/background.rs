//! What must be done now and then, also while nobody sends or receives.

use crate::handle::Handle;
use dwell_core::{BoxFuture, ErrorKind, Result};
use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);

/// Tidies the file until it is told to stop.
pub(crate) async fn run(handle: Arc<Handle>, mut stop: BoxFuture<'static, ()>) -> Result<()> {
    let settings = &handle.file().settings;
    // Nothing is kept for much longer than was asked for.
    let period = (settings.done.min(settings.ids) / 4).clamp(SHORTEST, LONGEST);
    let clock = handle.file().seams.clock.clone();
    loop {
        let mut tick = clock.tick(period);
        let is_stopped = poll_fn(|cx| match stop.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => tick.as_mut().poll(cx).map(|()| false),
        });
        if is_stopped.await {
            return Ok(());
        }
        match tidy(&handle).await {
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            // A full disk or a busy file is nothing that starting again would help.
            Err(error) => tracing::warn!(%error, "the file could not be tidied: it is tried again later"),
            Ok(()) => {}
        }
    }
}

async fn tidy(handle: &Handle) -> Result<()> {
    while handle.open()?.write(100, |tx| tx.tidy()).await? {}
    Ok(())
}
