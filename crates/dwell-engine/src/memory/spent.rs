//! Messages that were handled, until their memory is used again.

use bytes::Bytes;
use dwell_core::Message;
use std::collections::VecDeque;

/// No more than these are kept.
const MOST: usize = 512;

/// Nor any that has more bytes of its own: an idle transport holds on to little. That these are not parts of larger
/// buffers, which nobody can see here, is up to who sends: the bus encodes each message by itself, and copies what is small
/// and posted raw.
const LARGEST: usize = 1024;

/// Messages that were handled. They are dropped by whoever sends next: memory that goes back to the thread that it came
/// from, and is written to again at once, costs neither a lock of the allocator nor a look into the other core's cache.
#[derive(Default)]
pub(super) struct Spent(VecDeque<Message>);

impl Spent {
    pub(super) fn push(&mut self, message: Message) {
        if self.0.len() < MOST && size(&message) <= LARGEST {
            self.0.push_back(message);
        }
    }

    /// The one that was handled longest ago: nobody else has it any more.
    pub(super) fn pop(&mut self) -> Option<Message> {
        self.0.pop_front()
    }
}

fn size(message: &Message) -> usize {
    let headers = message.headers.iter().map(|(name, value)| name.len() + value.len());
    message.body.len() + message.key.as_ref().map_or(0, Bytes::len) + headers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handled_first_is_dropped_first_and_neither_many_nor_large_ones_are_kept() {
        let mut spent = Spent::default();
        let large = vec![0; LARGEST];
        spent.push(Message::new("large", "t", vec![0; LARGEST + 1]));
        spent.push(Message::new("large key", "t", "{}").with(|of| of.key = Some(large.clone().into())));
        spent.push(Message::new("large header", "t", "{}").with(|of| of.headers.append("h", large.clone())));
        for number in 0..MOST + 10 {
            spent.push(Message::new(format!("{number}"), "t", "{}"));
        }
        let ids: Vec<_> = std::iter::from_fn(|| spent.pop()).map(|message| message.id.to_string()).collect();
        let expected: Vec<_> = (0..MOST).map(|number| number.to_string()).collect();
        assert_eq!(ids, expected);
    }
}
