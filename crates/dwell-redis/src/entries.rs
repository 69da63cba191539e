//! Encoding of stream entry ids in receipts: a time and a sequence number within that millisecond,
//! in one number.

use dwell_core::{LeaseId, Text};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Position of an entry that does not fit into a receipt, and is looked up by its fence.
const ELSEWHERE: u64 = u64::MAX;

/// Maximum number. The oldest are dropped first.
const MOST: usize = 100_000;

/// Entries of one consumer that do not fit into a receipt. After a clock was set back, the server
/// counts on within one millisecond, and users may choose any entry id. A clone shares them.
#[derive(Clone, Default)]
pub(crate) struct Entries(Arc<Mutex<BTreeMap<u64, Text>>>);

impl Entries {
    /// Returns the position for a receipt.
    pub(crate) fn position(&self, entry: &str, fence: u64) -> u64 {
        if let Some(position) = position(entry) {
            return position;
        }
        let mut others = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        others.insert(fence, entry.into());
        while others.len() > MOST {
            others.pop_first();
        }
        ELSEWHERE
    }

    /// Returns the entry id of a receipt.
    pub(crate) fn of(&self, lease: LeaseId) -> String {
        if lease.position != ELSEWHERE {
            return format!("{}-{}", lease.position >> 20, lease.position & 0xf_ffff);
        }
        let others = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No entry has this id.
        others.get(&lease.fence).map_or_else(|| "0-0".to_owned(), ToString::to_string)
    }

    /// Removes an entry that is no longer needed.
    pub(crate) fn forget(&self, lease: LeaseId) {
        if lease.position == ELSEWHERE {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease.fence);
        }
    }
}

/// Returns an entry id as one number, if it fits.
pub(crate) fn position(entry: &str) -> Option<u64> {
    let (millis, number) = entry.split_once('-')?;
    let (millis, number): (u64, u64) = (millis.parse().ok()?, number.parse().ok()?);
    (millis < (1 << 44) - 1 && number < 1 << 20).then_some(millis << 20 | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_leads_back_to_any_entry() {
        let entries = Entries::default();
        let numbers = ["1763200800000-0", "1763200800000-1048575", "0-1"];
        let large = ["1763200800000-1048576", "99999999999999999-0", "17592186044415-1048575"];
        for (fence, written) in (1..).zip(numbers.iter().chain(&large)) {
            let lease = LeaseId { position: entries.position(written, fence), fence };
            assert_eq!(entries.of(lease), *written);
            assert_eq!(lease.position == ELSEWHERE, large.contains(written));
        }
        let lease = LeaseId { position: ELSEWHERE, fence: 4 };
        entries.forget(lease);
        assert_eq!(entries.of(lease), "0-0");
    }
}
