//! Decides where a record goes next. The functions are pure, so that every rule is tested without a
//! broker.

use super::RelaySettings;
use crate::{
    headers::RawHeaders,
    record::{ORIGINAL_TIMESTAMP, Outgoing, PROCESS_AT, Record, TARGET_TOPIC, number},
};
use dwell_core::{Moment, Text, Timestamp, check_topic, wire};
use std::time::Duration;

/// Header with the delay in milliseconds from the append. Only Dwell writes it, and the first hop
/// removes it.
pub(crate) const AFTER: &str = "x-dwell-after";
/// Header with the time since which the target has been absent, in milliseconds since the epoch.
const ABSENT_SINCE: &str = "x-dwell-absent-since";
/// Header of a record that was put back because its target was unavailable, not because it was
/// early.
const PUT_BACK: &str = "x-dwell-put-back";

/// A record with its parsed target and due time.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) target: Text,
    pub(super) process_at: Timestamp,
    /// Since when the target has been absent, if that was noticed.
    pub(super) absent_since: Option<Timestamp>,
    /// Whether it was put back because its target was unavailable, so that it may be late.
    pub(super) was_put_back: bool,
    pub(super) record: Record,
}

impl Plan {
    /// Reads a record of a delay topic. `Err` contains the reason why it can never be forwarded,
    /// and the record.
    pub(super) fn read(mut record: Record, settings: &RelaySettings) -> Result<Self, Box<(String, Record)>> {
        match Self::headers(&mut record, settings) {
            Ok((target, process_at, absent_since)) => {
                let was_put_back = record.headers.get(PUT_BACK).is_some();
                Ok(Self { target, process_at, absent_since, was_put_back, record })
            }
            Err(reason) => Err(Box::new((reason, record))),
        }
    }

    fn headers(
        record: &mut Record,
        settings: &RelaySettings,
    ) -> Result<(Text, Timestamp, Option<Timestamp>), String> {
        if record.broken {
            return Err("the name of one of its headers is not valid UTF-8".to_owned());
        }
        let target = record.headers.get(TARGET_TOPIC).ok_or_else(|| missing(TARGET_TOPIC))?;
        let target = std::str::from_utf8(target).map_err(|_| malformed(TARGET_TOPIC, "not valid UTF-8"))?;
        check_target(target)?;
        if !settings.allows(target) {
            return Err(format!("this relay may not forward to the target `{target}`"));
        }
        let target = Text::from(target);
        let appended = record.timestamp.ok_or("it has no timestamp")?;
        let time = |headers: &RawHeaders, name| match headers.get(name).map(|value| (number(value), value)) {
            None => Ok(None),
            Some((Some(number), _)) if number >= 0 => Ok(Some(number)),
            Some((_, value)) => Err(malformed(name, &format!("`{}`", shown(value)))),
        };
        let written = time(&record.headers, PROCESS_AT)?;
        let process_at = match time(&record.headers, AFTER)? {
            // The append time is in whole milliseconds, so the delay starts at the end of that
            // millisecond. A creation time is that of the sender's clock, and so is the due time
            // that the sender wrote.
            Some(after) if record.has_append_time || written.is_none() => {
                Moment::within(appended).ceil().0.saturating_add(after)
            }
            _ => written.ok_or_else(|| missing(PROCESS_AT))?,
        };
        let absent_since = time(&record.headers, ABSENT_SINCE)?.map(Timestamp);
        if record.headers.get(AFTER).is_some() {
            record.headers = record.headers.without(&[AFTER]);
            record.headers.set(PROCESS_AT, process_at);
        }
        if record.headers.get(ORIGINAL_TIMESTAMP).is_none() {
            record.headers.set(ORIGINAL_TIMESTAMP, appended.0);
        }
        Ok((target, Timestamp(process_at), absent_since))
    }

    /// Returns the record for its target, without the relay's own headers. The due time stays.
    pub(super) fn forward(&self) -> Outgoing {
        let headers = self.record.headers.without(&[TARGET_TOPIC, ABSENT_SINCE, PUT_BACK]);
        self.outgoing(self.target.clone(), headers)
    }

    /// Returns the record for another delay topic.
    pub(super) fn shelve(&self, topic: String) -> Outgoing {
        let mut headers = self.record.headers.without(&[ABSENT_SINCE, PUT_BACK]);
        if let Some(since) = self.absent_since {
            headers.set(ABSENT_SINCE, since.0);
        }
        self.outgoing(topic.into(), headers)
    }

    /// Notes that the target exists. A later absence is measured from its own start.
    pub(super) fn found(&mut self) {
        self.absent_since = None;
    }

    /// Returns the record for a delay topic, because its target is unavailable.
    pub(super) fn put_back(&self, topic: String) -> Outgoing {
        let mut outgoing = self.shelve(topic);
        outgoing.headers.set(PUT_BACK, 1);
        outgoing
    }

    fn outgoing(&self, topic: Text, headers: RawHeaders) -> Outgoing {
        Outgoing { topic, key: self.record.key.clone(), headers, body: self.record.body.clone() }
    }

    /// Returns how long the record still has to wait.
    pub(super) fn remaining(&self, now: Timestamp) -> Duration {
        self.process_at.since(now)
    }
}

/// Returns a record for the parking topic: everything that could be read, and the reason.
pub(super) fn park(
    record: &Record,
    from: &str,
    reason: &str,
    settings: &RelaySettings,
    now: Timestamp,
) -> Outgoing {
    let mut headers = record.headers.clone();
    // A delayed dead letter already names its original topic, which is more useful than the level.
    if headers.get(wire::ORIGINAL_TOPIC).is_none() {
        headers.set(wire::ORIGINAL_TOPIC, from);
    }
    headers.set(wire::REJECTION_REASON, "unroutable");
    headers.set(wire::REJECTION_MESSAGE, reason);
    headers.set(wire::REJECTED_AT, now.to_rfc3339());
    let (key, body) = (record.key.clone(), record.body.clone());
    Outgoing { topic: settings.parking_topic().into(), key, headers, body }
}

fn check_target(target: &str) -> Result<(), String> {
    // Kafka has no topics of these names.
    if matches!(target, "." | "..") {
        return Err(malformed(TARGET_TOPIC, &format!("`{target}` is not the name of a topic")));
    }
    // Topic names in Kafka may be longer than those in Dwell, as retry topics are.
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let long = target.len() <= 249 && !target.is_empty() && target.chars().all(fits);
    if long {
        Ok(())
    } else {
        check_topic(target).map_err(|error| malformed(TARGET_TOPIC, &error.to_string()))
    }
}

fn missing(name: &str) -> String {
    format!("it has no header `{name}`")
}

fn malformed(name: &str, what: &str) -> String {
    format!("its header `{name}` cannot be read: {what}")
}

fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(40).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(headers: &[(&str, &str)]) -> Record {
        let headers = headers.iter().map(|(name, value)| (*name, Some(value.as_bytes())));
        Record {
            offset: 7,
            timestamp: Some(Timestamp(1_000_000)),
            has_append_time: true,
            key: Some("k".into()),
            headers: headers.collect(),
            ..Record::default()
        }
    }

    fn read(headers: &[(&str, &str)]) -> Result<Plan, String> {
        Plan::read(record(headers), &RelaySettings::default()).map_err(|refused| refused.0)
    }

    fn read_again(sent: Outgoing) -> Plan {
        let record = Record { headers: sent.headers, ..record(&[]) };
        Plan::read(record, &RelaySettings::default()).unwrap()
    }

    fn names(headers: &RawHeaders) -> Vec<(&str, &str)> {
        headers.iter().map(|(name, value)| (name, std::str::from_utf8(value.unwrap()).unwrap())).collect()
    }

    #[test]
    fn the_headers_of_other_clients_suffice() {
        let plan =
            read(&[("tag", "1"), ("X-Target-Topic", "orders"), ("x-process-at", "1000900"), ("tag", "2")])
                .unwrap();
        assert_eq!((&*plan.target, plan.process_at), ("orders", Timestamp(1_000_900)));
        assert_eq!(plan.remaining(Timestamp(1_000_100)), Duration::from_millis(800));
        let sent = plan.forward();
        assert_eq!((&*sent.topic, sent.key.as_deref(), &sent.body), ("orders", Some(&b"k"[..]), &None));
        let expected =
            [("tag", "1"), ("x-process-at", "1000900"), ("tag", "2"), ("x-original-timestamp", "1000000")];
        assert_eq!(names(&sent.headers), expected);
    }

    #[test]
    fn a_delay_counts_once_from_the_append_time() {
        let headers = [
            ("x-target-topic", "orders"),
            ("x-process-at", "5"),
            ("x-original-timestamp", "4"),
            ("x-dwell-after", "250"),
        ];
        let plan = read(&headers).unwrap();
        assert_eq!(plan.process_at, Timestamp(1_000_251));
        let put_back = read_again(plan.put_back("delay-5s".into()));
        assert!(put_back.was_put_back && !read_again(put_back.shelve("delay-5s".into())).was_put_back);
        assert_eq!(names(&put_back.forward().headers), names(&plan.forward().headers));
        let shelved = plan.shelve("delay-5s".into());
        let expected =
            [("x-target-topic", "orders"), ("x-original-timestamp", "4"), ("x-process-at", "1000251")];
        assert_eq!(names(&shelved.headers), expected);
    }

    #[test]
    fn a_delay_does_not_count_from_a_creation_time() {
        let headers = [("x-target-topic", "orders"), ("x-process-at", "5"), ("x-dwell-after", "250")];
        let read = |headers: &[(&str, &str)]| {
            let record = Record { has_append_time: false, ..record(headers) };
            Plan::read(record, &RelaySettings::default()).unwrap().process_at
        };
        assert_eq!(read(&headers), Timestamp(5));
        assert_eq!(read(&[headers[0], headers[2]]), Timestamp(1_000_251), "no other time is known");
    }

    #[test]
    fn the_time_of_absence_is_kept_until_the_target_is_found() {
        let headers = [("x-target-topic", "orders"), ("x-process-at", "5"), ("x-dwell-absent-since", "7")];
        let mut plan = read_again(read(&headers).unwrap().put_back("delay-5s".into()));
        assert_eq!(plan.absent_since, Some(Timestamp(7)));
        plan.found();
        assert_eq!(read_again(plan.put_back("delay-5s".into())).absent_since, None);
    }

    #[test]
    fn unforwardable_records_are_parked_whole_with_the_reason() {
        for (headers, reason) in [
            (vec![("x-process-at", "1")], "no header `x-target-topic`"),
            (vec![("x-target-topic", "orders")], "no header `x-process-at`"),
            (vec![("x-target-topic", "orders"), ("x-process-at", "tomorrow")], "`tomorrow`"),
            (vec![("x-target-topic", "orders"), ("x-process-at", "-5")], "`-5`"),
            (vec![("x-target-topic", "or/ders"), ("x-process-at", "5")], "x-target-topic"),
            (vec![("x-target-topic", "."), ("x-process-at", "5")], "`.` is not the name of a topic"),
            (vec![("x-target-topic", ".."), ("x-process-at", "5")], "`..` is not the name of a topic"),
            (vec![("x-target-topic", "delay-5s"), ("x-process-at", "5")], "this relay may not forward to"),
        ] {
            let said = read(&headers).unwrap_err();
            assert!(said.contains(reason), "{said}");
            let parked = park(&record(&headers), "delay-5s", &said, &RelaySettings::default(), Timestamp(0));
            assert_eq!(&*parked.topic, "delay-parked");
            assert_eq!(names(&parked.headers)[..headers.len()], headers[..]);
            assert_eq!(parked.headers.get(wire::REJECTION_MESSAGE).unwrap(), said.as_bytes());
        }
        let of_its_own = record(&[("x-original-topic", "orders"), ("tag", "1")]);
        let parked = park(&of_its_own, "delay-5s", "no target", &RelaySettings::default(), Timestamp(0));
        assert_eq!(names(&parked.headers)[..2], [("x-original-topic", "orders"), ("tag", "1")]);
        let broken = Record { broken: true, ..record(&[]) };
        assert!(Plan::read(broken, &RelaySettings::default()).is_err());
    }
}
