//! What benchmarks share: how figures are shown, to people or to programs.
#![forbid(unsafe_code)]

pub mod process;

/// Where the figures of one benchmark go: a line each, or one JSON object per line.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The name of the benchmark.
    pub bench: &'static str,
    /// For programs.
    pub json: bool,
}

impl Output {
    /// Two rates that were measured in turns, ours first; the ratio is better when larger. Of all rounds it shows the one
    /// whose ratio is in the middle: the machine is shared, and a neighbour who slows down both at once does no harm to a
    /// ratio.
    pub fn rates(&self, case: &str, mut rounds: Vec<(f64, f64)>) {
        rounds.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let (ours, raw) = rounds[rounds.len() / 2];
        self.ratio(case, ours, raw, ours / raw, "messages/s");
    }

    /// A figure beside the bare thing's: `ratio` is better when larger.
    pub fn ratio(&self, case: &str, ours: f64, raw: f64, ratio: f64, unit: &str) {
        let Self { bench, json } = self;
        if *json {
            println!(
                r#"{{"bench":"{bench}","case":"{case}","ours":{ours:.3},"raw":{raw:.3},"ratio":{ratio:.3},"unit":"{unit}"}}"#
            );
        } else {
            println!("{case:<72} {ours:>14.3} {raw:>14.3} {ratio:>7.2}  {unit}");
        }
    }

    /// A figure that stands alone.
    pub fn figure(&self, case: &str, ours: f64, unit: &str) {
        let Self { bench, json } = self;
        if *json {
            println!(r#"{{"bench":"{bench}","case":"{case}","ours":{ours:.3},"unit":"{unit}"}}"#);
        } else {
            println!("{case:<72} {ours:>14.3} {:>14} {:>7}  {unit}", "", "");
        }
    }

    /// How late things were, in milliseconds.
    pub fn lateness(&self, case: &str, mut late: Vec<f64>) {
        late.sort_by(f64::total_cmp);
        let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
        let early = late.iter().filter(|late| **late < 0.0).count();
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        let Self { bench, json } = self;
        if *json {
            println!(
                r#"{{"bench":"{bench}","case":"{case}","p50_ms":{p50:.3},"p99_ms":{p99:.3},"max_ms":{max:.3},"early":{early}}}"#
            );
        } else {
            println!("{case:<72} p50 {p50:>9.3} ms  p99 {p99:>9.3} ms  max {max:>9.3} ms  early {early}");
        }
    }
}

/// The middle of some figures: the machines are shared, and one slow round says nothing.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Rates that were measured in turns, as pairs.
pub fn in_turns(ours: &[f64], raw: &[f64]) -> Vec<(f64, f64)> {
    ours.iter().copied().zip(raw.iter().copied()).collect()
}
