//! From what was counted and seen to one page of text.

use super::{
    histogram::Histogram,
    live::{Live, Series},
    scrape::{STATUSES, Scrape},
};
use dwell_core::{Measure, Measured};
use dwell_engine::Counts;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};
use std::{fmt::Error, sync::Arc};

/// One page.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) live: Arc<Live>,
    pub(super) scrape: Scrape,
}

type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

fn place<'a>(topic: &'a str, subscription: &'a str) -> Labels<'a, 2> {
    [("topic", topic), ("subscription", subscription)]
}

fn labels<'a>(topic: &'a str, subscription: &'a str, name: &'static str, value: &'a str) -> Labels<'a, 3> {
    [("topic", topic), ("subscription", subscription), (name, value)]
}

/// A metric of which nothing is known is not on the page.
fn gauges<const N: usize, V: EncodeGaugeValue>(
    page: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    values: &[(Labels<'_, N>, V)],
) -> Result<(), Error> {
    if values.is_empty() {
        return Ok(());
    }
    let mut metric = page.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (labels, value) in values {
        match N {
            0 => metric.encode_gauge(value)?,
            _ => metric.encode_family(labels)?.encode_gauge(value)?,
        }
    }
    Ok(())
}

fn counters<const N: usize>(
    page: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &[(Labels<'_, N>, u64)],
) -> Result<(), Error> {
    if values.is_empty() {
        return Ok(());
    }
    let mut metric = page.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(value, None)?;
    }
    Ok(())
}

/// What a transport tells of its own work.
fn of_the_transport(page: &mut DescriptorEncoder<'_>, measure: &Measure) -> Result<(), Error> {
    let Measure { name, help, value } = measure;
    match value {
        Measured::Counter(count) => {
            let mut metric = page.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, f64>(count, None)
        }
        Measured::Gauge(value) => gauges(page, name, help, None, &[([], *value)]),
        Measured::GaugeOfTopics(values) => {
            let values: Vec<_> =
                values.iter().map(|(topic, value)| ([("topic", &**topic)], *value)).collect();
            gauges(page, name, help, None, &values)
        }
        Measured::Times { sum, buckets } => {
            let seconds = Some(&Unit::Seconds);
            let mut metric = page.encode_descriptor(name, help, seconds, MetricType::Histogram)?;
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

impl Collector for Report {
    fn encode(&self, mut page: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut version = page.encode_descriptor("build", "The version of Dwell.", None, MetricType::Info)?;
        version.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        self.messages(&mut page)?;
        self.runs(&mut page)?;
        self.workers(&mut page)?;
        self.broker(&mut page)?;
        self.scrape.measures.iter().try_for_each(|measure| of_the_transport(&mut page, measure))
    }
}

impl Report {
    fn messages(&self, page: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let published = self.live.published();
        let published: Vec<_> =
            published.iter().map(|(topic, count)| ([("topic", &**topic)], *count)).collect();
        counters(page, "messages_published", "Messages that were sent and confirmed.", &published)?;

        let messages = &self.scrape.messages;
        let states: Vec<_> = messages.keys().map(|(.., state)| state.to_string()).collect();
        let held: Vec<_> = messages
            .iter()
            .zip(&states)
            .map(|(((topic, name, _), count), state)| (labels(topic, name, "state", state), *count))
            .collect();
        gauges(page, "messages", "Messages that the transport holds, by state.", None, &held)
    }

    fn runs(&self, page: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Deliveries that were decided about, by outcome.";
        let mut metric = page.encode_descriptor("deliveries", help, None, MetricType::Counter)?;
        self.live.each(|topic, name, series| {
            for (outcome, count) in series.outcomes() {
                let labels = labels(topic, name, "outcome", outcome);
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
            Ok(())
        })?;
        let help = "Messages that were given up for good.";
        let mut metric = page.encode_descriptor("messages_dead", help, None, MetricType::Counter)?;
        self.live.each(|topic, name, series| {
            let labels = place(topic, name);
            let mut family = metric.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, f64>(&series.dead(), None)
        })?;
        let help = "From when a message was due until its handler started.";
        self.times(page, "lateness", help, |series| &series.lateness)?;
        let help = "From start to end of a handler.";
        self.times(page, "handler_duration", help, |series| &series.took)
    }

    fn times(
        &self,
        page: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        of: impl Fn(&Series) -> &Histogram,
    ) -> Result<(), Error> {
        let mut metric = page.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        self.live.each(|topic, name, series| {
            let times = of(series).read();
            let labels = place(topic, name);
            let mut family = metric.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(times.sum, times.count, &times.buckets, None)
        })
    }

    fn workers(&self, page: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let pumps = &self.scrape.pumps;
        let in_flight: Vec<_> =
            pumps.iter().map(|pump| (place(&pump.topic, &pump.subscription), pump.in_flight)).collect();
        let help = "Deliveries that this process has received and not yet settled.";
        gauges(page, "in_flight", help, None, &in_flight)?;

        let performers: Vec<_> = pumps
            .iter()
            .flat_map(|pump| {
                let of = move |status| labels(&pump.topic, &pump.subscription, "status", status);
                STATUSES.into_iter().zip(pump.performers).map(move |(status, count)| (of(status), count))
            })
            .collect();
        gauges(page, "performers", "The loops that receive, by how they are doing.", None, &performers)?;

        type Of = fn(&Counts) -> u64;
        let counts: [(&str, &str, Of); 5] = [
            ("handler_timeouts", "Runs that took longer than they may.", |counts| counts.timed_out),
            ("deliveries_lost", "Deliveries that another worker got meanwhile.", |counts| counts.lost),
            ("settlements_failed", "Settlements that failed and were tried again.", |counts| {
                counts.settlements_failed
            }),
            ("receives_failed", "Receives that failed.", |counts| counts.receives_failed),
            ("performer_restarts", "Performers that ended unexpectedly and were started again.", |counts| {
                counts.restarts
            }),
        ];
        for (name, help, of) in counts {
            let values: Vec<_> =
                pumps.iter().map(|pump| (place(&pump.topic, &pump.subscription), of(&pump.counts))).collect();
            counters(page, name, help, &values)?;
        }
        Ok(())
    }

    fn broker(&self, page: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let scrape = &self.scrape;
        let seconds = Some(&Unit::Seconds);
        let ready: Vec<_> =
            scrape.ready.iter().map(|((topic, name), age)| (place(topic, name), age.as_secs_f64())).collect();
        let help = "How long the oldest message that is ready has been so.";
        gauges(page, "oldest_ready_age", help, seconds, &ready)?;

        let overdue: Vec<_> = scrape.overdue.iter().map(|late| ([], late.as_secs_f64())).collect();
        let help = "How long the oldest message that is due, and that nobody has taken, has been so.";
        gauges(page, "oldest_overdue", help, seconds, &overdue)?;

        let tick: Vec<_> = scrape.last_tick.iter().map(|tick| ([], tick.0 as f64 / 1e3)).collect();
        let help = "When the forwarder from the store last showed that it is alive.";
        gauges(page, "scheduler_last_tick_timestamp", help, seconds, &tick)?;

        let help = "Whether transport and store answer, and receiving works.";
        gauges(page, "transport_up", help, None, &[([], u64::from(scrape.up))])
    }
}
