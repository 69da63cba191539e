//! Sends under an id that their users chose, to a broker that remembers no ids: a store remembers
//! them, as `sending` while nobody knows whether the broker has the message, and then as `sent`.

use super::{Checker, Promise};
use crate::trace::{Placed, Request, SendBegun, Service, Subject};
use dwell_core::{Address, MessageId};
use std::collections::BTreeMap;

/// What a store knows about an id at an address.
struct Known {
    subject: Subject,
    is_sent: bool,
}

#[derive(Default)]
pub(super) struct Sends {
    known: BTreeMap<(MessageId, Address), Known>,
    /// How often each request may send, and how often it has: by its number, the message and its
    /// address.
    allowed: BTreeMap<(usize, Subject, Address), (u32, u32)>,
}

impl Sends {
    pub(super) fn ended(&mut self, subject: &Subject, to: &Address, is_sent: bool) {
        let key = (subject.id.clone(), to.clone());
        if is_sent {
            self.known.insert(key, Known { subject: subject.clone(), is_sent });
        } else if self.known.get(&key).is_some_and(|known| known.subject == *subject && !known.is_sent) {
            self.known.remove(&key);
        }
    }
}

impl Checker {
    /// Only what was sent is a duplicate, and what was sent is not sent again. A repeat of what is
    /// `sending` is sent again: nobody knows better.
    pub(super) fn send_begun(&mut self, begun: &SendBegun) {
        let SendBegun { request, subject, to, duplicate } = begun;
        let known = self.sends.known.get(&(subject.id.clone(), to.clone()));
        let is_of_another = known.is_some_and(|known| known.subject != *subject);
        let is_sent = known.is_some_and(|known| known.is_sent);
        if is_of_another {
            let text =
                format!("{subject} was accepted for {to} under the id of another, which was to conflict");
            return self.broken(Promise::DuplicatesExplained, &subject.id, text);
        }
        match (duplicate, is_sent) {
            (true, true) => {}
            (true, false) if self.entries.is_chosen(subject, to) => {}
            (true, false) => {
                let text = format!("{to} was taken for a repetition of a send that nobody knows to be done");
                self.broken(Promise::NeverLost, &subject.id, text);
            }
            (false, true) => {
                let text = format!("it was recorded as sent to {to}, and may be sent again");
                self.broken(Promise::DuplicatesExplained, &subject.id, text);
            }
            (false, false) => {
                let known = Known { subject: subject.clone(), is_sent: false };
                self.sends.known.insert((subject.id.clone(), to.clone()), known);
                if let Some(request) = request {
                    self.sends.allowed.entry((*request, subject.clone(), to.clone())).or_default().0 += 1;
                }
            }
        }
    }

    /// A log is sent no message with a chosen id before the store has recorded it, and once for
    /// each time.
    pub(super) fn check_begun(&mut self, placed: &Placed) {
        let (Some(request), Service::Target, true) = (placed.request, placed.service, self.has_sessions())
        else {
            return;
        };
        let chosen = self.requests.range((request, 0)..(request + 1, 0)).any(|(_, (_, asked))| {
            matches!(asked, Request::Send { subject, to, once: Some(_), .. }
                if *subject == placed.subject && *to == placed.to)
        });
        if !chosen {
            return;
        }
        let key = (request, placed.subject.clone(), placed.to.clone());
        let (allowed, sent) = self.sends.allowed.entry(key).or_default();
        *sent += 1;
        if sent > allowed {
            let text = format!(
                "it was sent to {} {sent} times, and recorded as `sending` {allowed} times",
                placed.to
            );
            self.broken(Promise::DuplicatesExplained, &placed.subject.id, text);
        }
    }

    /// A repeated send of a confirmed message is a duplicate, unless a fault prevented its record.
    pub(super) fn check_recorded(&mut self, request: usize, subject: &Subject, to: &Address) {
        let has_sent = self.sends.allowed.get(&(request, subject.clone(), to.clone()));
        if has_sent.is_none_or(|(_, sent)| *sent == 0) {
            return;
        }
        let is_sent =
            self.sends.known.get(&(subject.id.clone(), to.clone())).is_some_and(|known| known.is_sent);
        let mut reached = self.plan.clone().reached(to).into_iter();
        if !is_sent && reached.all(|of| self.track(subject, &of).faults == 0) {
            let text =
                format!("the send to {to} was answered with Ok, and a repeat of it would be sent again");
            self.broken(Promise::DuplicatesExplained, &subject.id, text);
        }
    }
}
