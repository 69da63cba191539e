//! Handle to an open file, as seen by its owner: it is closed separately from other handles of the
//! same file.

use crate::file::File;
use dwell_core::{Error, ErrorKind, Result};
use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

/// Consumer that must be closed together with its handle.
pub(crate) trait Member: Send + Sync {
    fn leave(&self) -> dwell_core::BoxFuture<'_, Result<()>>;
}

pub(crate) struct Handle {
    file: Arc<File>,
    is_closed: AtomicBool,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

impl Handle {
    pub(crate) fn new(file: Arc<File>) -> Arc<Self> {
        file.add_handle();
        Arc::new(Self { file, is_closed: AtomicBool::new(false), members: Mutex::default() })
    }

    /// Returns the file, unless this handle was closed.
    pub(crate) fn open(&self) -> Result<&Arc<File>> {
        if self.is_closed.load(Ordering::SeqCst) {
            let text =
                format!("this connection to `{}` was closed: connect again", self.file.settings.location);
            return Err(Error::new(ErrorKind::Closed, text));
        }
        Ok(&self.file)
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(crate) fn add_member(&self, member: Weak<dyn Member>) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    /// Closes every member; closes the file with the last handle.
    pub(crate) async fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let members = std::mem::take(&mut *self.members.lock().unwrap_or_else(PoisonError::into_inner));
        let mut left = Ok(());
        for member in members.iter().filter_map(Weak::upgrade) {
            left = left.and(member.leave().await);
        }
        self.file.signals.wake_everyone();
        self.file.remove_handle().await;
        left
    }
}

impl Drop for Handle {
    /// A handle dropped without `close` counts as crashed, and does not keep the others from
    /// closing the file.
    fn drop(&mut self) {
        if !*self.is_closed.get_mut() {
            self.file.forget_handle();
        }
    }
}
