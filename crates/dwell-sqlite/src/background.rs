//! Periodic maintenance, which also runs while nothing is sent or received.

use crate::handle::Handle;
use dwell_core::{BoxFuture, ErrorKind, Result};
use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);

/// Tidies the file until `stop` resolves.
pub(crate) async fn run(handle: Arc<Handle>, mut stop: BoxFuture<'static, ()>) -> Result<()> {
    let settings = &handle.file().settings;
    // Tidying this often keeps expired records only slightly longer than configured.
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
            // Restarting would not help against a full disk or a busy file.
            Err(error) => tracing::warn!(%error, "tidying the file failed; retrying later"),
            Ok(()) => {}
        }
    }
}

async fn tidy(handle: &Handle) -> Result<()> {
    while handle.open()?.write(100, |tx| tx.tidy()).await? {}
    Ok(())
}
