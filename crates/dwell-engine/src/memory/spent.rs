//! Handled messages, until their memory is reused.

use bytes::Bytes;
use dwell_core::Message;
use std::collections::VecDeque;

/// Maximum number of messages.
const MOST: usize = 512;

/// Maximum size of a message in bytes, so that an idle transport uses little memory. A body may be
/// a part of a larger buffer, which is not visible here. The bus avoids that: it encodes each
/// message separately, and copies small raw bodies.
const LARGEST: usize = 1024;

/// Handled messages, which the next sender drops. Memory that returns to the thread that allocated
/// it, and is reused immediately, costs neither a lock of the allocator nor a cache miss in another
/// core.
#[derive(Default)]
pub(super) struct Spent(VecDeque<Message>);

impl Spent {
    pub(super) fn push(&mut self, message: Message) {
        if self.0.len() < MOST && size(&message) <= LARGEST {
            self.0.push_back(message);
        }
    }

    /// Returns the message that was handled first. It has no other clones.
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
    fn only_few_small_messages_are_kept_in_order() {
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
