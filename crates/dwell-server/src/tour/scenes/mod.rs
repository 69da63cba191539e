//! The scenes of the tour, in order.

mod crowd;
mod dead_letter;
mod deferred;
mod failures;
mod later;
mod now;
mod shutdown;

use super::guide::{Guide, Result};

/// Plays all scenes. The first that fails ends the tour.
pub(super) async fn play(guide: &mut Guide) -> Result<()> {
    now::play(guide).await?;
    later::play(guide).await?;
    crowd::play(guide).await?;
    deferred::play(guide).await?;
    failures::play(guide).await?;
    dead_letter::play(guide).await?;
    shutdown::play(guide).await
}
