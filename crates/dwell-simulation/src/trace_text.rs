//! Text form of a trace: one line per event.

use crate::trace::{Answer, Ending, Entry, Event, How, Request, Stage};
use dwell_core::{Attempts, Due, duration::format_duration};
use std::fmt;

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14} {:>13}  {}", Millis(self.at.as_millis()), self.wall.0, self.event)
    }
}

/// Seconds with three decimals, formatted without floating-point conversion.
struct Millis(u128);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:03}", self.0 / 1000, self.0 % 1000))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(text) => f.write_str(text),
            Self::Life(who, stage) => write!(f, "{who} {}", stage_text(*stage)),
            Self::Step(by) => write!(f, "the broker's wall clock is set by {by} ms"),
            Self::Fault { fault, who, call, touched } => {
                write!(f, "FAULT {fault}")?;
                who.map_or(Ok(()), |who| write!(f, " {who}"))?;
                write!(f, " {call}")?;
                touched.iter().try_for_each(|touched| write!(f, " {}→{}", touched.subject, touched.to))
            }
            Self::Impaired(who, of, true) => write!(f, "{who} cannot renew its leases of {of}"),
            Self::Impaired(who, of, false) => write!(f, "{who} can renew its leases of {of} again"),
            Self::Membership(of) => write!(f, "the group members of {of} changed"),
            Self::Asked(number, item, who, request) => {
                write!(f, "{who} requests [{number}.{item}] {request}")
            }
            Self::Answered(number, item, answer) => {
                write!(f, "result [{number}.{item}] {}", answer_text(answer))
            }
            Self::Placed(placed) => {
                write!(
                    f,
                    "{} {} ",
                    placed.service,
                    if placed.duplicate { "deduplicated" } else { "accepted" }
                )?;
                write!(f, "{}→{} {}", placed.subject, placed.to, counts(placed.attempts))?;
                write!(f, " due {} as {}", due_text(placed.due), placed.schedule)?;
                placed.who.map_or(Ok(()), |who| write!(f, " from {who}"))?;
                placed.request.map_or(Ok(()), |number| write!(f, " for [{number}]"))?;
                if placed.moved { write!(f, " (moved)") } else { Ok(()) }
            }
            Self::Confirmed { who, subject, to, handled, asked } => {
                let asked = if *asked { " by request" } else { "" };
                write!(f, "{who} got the confirmation of {subject}→{to} #{handled}{asked}")
            }
            Self::Received(received) => {
                write!(f, "{} delivers to {} ", received.service, received.who)?;
                write!(f, "{}→{} {}", received.subject, received.subscription, counts(received.attempts))?;
                write!(f, " lease {}:{}", received.lease.position, received.lease.fence)?;
                received.deliveries.map_or(Ok(()), |times| write!(f, " delivery {times}"))
            }
            Self::Settled(settled) => {
                let how = match settled.how {
                    How::Ack => "acked",
                    How::Release => "released",
                    How::Move => "moved",
                };
                write!(f, "{} {how} {}", settled.service, settled.subject)?;
                write!(f, " of {} for {}", settled.subscription, settled.who)?;
                write!(f, " lease {}:{}", settled.lease.position, settled.lease.fence)
            }
            Self::GaveBack(who, _, of) => write!(f, "{who} closed its consumer of {of}"),
            Self::Dropped(who, _, of) => write!(f, "{who} dropped its consumer of {of}"),
            Self::SendBegun(begun) => {
                let answer = if begun.duplicate { "was sent before" } else { "may be sent" };
                write!(f, "store: {} to {} {answer}", begun.subject, begun.to)
            }
            Self::SendEnded(subject, to, sent) => write!(f, "store: {subject} to {to} sent: {sent}"),
            Self::Cancelled(service, id, changed) => write!(f, "{service} cancel of {id}: {changed:?}"),
            Self::Rescheduled(service, id, due, changed) => {
                write!(f, "{service} reschedule of {id} to {}: {changed:?}", due_text(*due))
            }
            Self::Run(run) => {
                write!(f, "{} runs {} #{} in {}", run.who, run.subject, run.run, run.subscription)?;
                write!(f, " {} lease {}:{}", counts(run.attempts), run.lease.position, run.lease.fence)
            }
            Self::Ended(run, ending) => write!(f, "run #{run} {}", ending_text(*ending)),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { subject, to, due, once } => {
                write!(f, "send {subject}→{to} due {}", due_text(*due))?;
                once.map_or(Ok(()), |once| write!(f, " once: {once:?}"))
            }
            Self::Cancel(id) => write!(f, "cancel {id}"),
            Self::Reschedule(id, due) => write!(f, "reschedule {id} to {}", due_text(*due)),
            Self::Replay(topic) => write!(f, "replay dead letters of {topic}"),
        }
    }
}

fn counts(attempts: Attempts) -> String {
    format!("({} handled, {} failed)", attempts.handled, attempts.failed)
}

fn due_text(due: Due) -> String {
    match due {
        Due::NOW => "now".into(),
        Due::After(delay) => format!("in {}", format_duration(delay)),
        Due::At(time) => format!("at {}", time.0),
    }
}

fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::Started => "starts",
        Stage::Ready => "is ready",
        Stage::Crashed => "CRASHES",
        Stage::Paused => "pauses",
        Stage::Resumed => "resumes",
        Stage::Stopping => "begins an orderly stop",
        Stage::Stopped => "has stopped",
    }
}

fn answer_text(answer: &Answer) -> String {
    match answer {
        Answer::Sent(false) => "sent".into(),
        Answer::Sent(true) => "duplicate".into(),
        Answer::Changed(changed) => format!("{changed:?}"),
        Answer::Replayed(count) => format!("replayed {count}"),
        Answer::Failed(kind) => format!("failed: {kind}"),
    }
}

fn ending_text(ending: Ending) -> String {
    match ending {
        Ending::Handled => "handled it".into(),
        Ending::Deferred(None) => "deferred it".into(),
        Ending::Deferred(Some(due)) => format!("deferred it, due {}", due_text(due)),
        Ending::Failed => "failed".into(),
        Ending::TimedOut => "timed out".into(),
        Ending::Released => "released it".into(),
        Ending::Rejected => "rejected it".into(),
        Ending::Invalid => "found it invalid".into(),
        Ending::Unknown => "does not know its type".into(),
        Ending::Misconfigured => "is misconfigured".into(),
        Ending::Interrupted => "was interrupted".into(),
    }
}
