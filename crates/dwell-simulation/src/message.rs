//! Messages that contain their own expected content.

use crate::trace::Subject;
use dwell_core::Message;

const KEY: &str = "simulated-key";
const TWICE: &str = "simulated-twice";

fn kind(generation: u32) -> String {
    format!("simulated.kind{}", generation % 3)
}

/// Returns a message of this subject.
pub(crate) fn message(subject: &Subject, key: Option<u8>) -> Message {
    let mut message =
        Message::new(subject.id.clone(), kind(subject.generation), Subject::body(subject.generation));
    message.key = key.map(|key| vec![b'k', key].into());
    let key = format!("{:?}", message.key);
    message.headers.append(KEY, key);
    message.headers.append(TWICE, "one");
    message.headers.append(TWICE, "two");
    message
}

/// Returns which part of the message differs from what was sent, if any.
pub(crate) fn altered(message: &Message) -> Option<&'static str> {
    let subject = Subject::of(message);
    if subject.generation == u32::MAX {
        return Some("body");
    }
    if *message.kind != *kind(subject.generation) {
        return Some("type");
    }
    if message.headers.get_text(KEY) != Some(&format!("{:?}", message.key)) {
        return Some("key");
    }
    let twice: Vec<_> =
        message.headers.iter().filter(|(name, _)| &***name == TWICE).map(|(_, value)| &value[..]).collect();
    (twice != [&b"one"[..], b"two"]).then_some("list of headers")
}
