//! Output of benchmark figures, for people or for programs.
#![forbid(unsafe_code)]

pub mod process;

/// Prints the figures of one benchmark, as text or as one JSON object per line.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The name of the benchmark.
    pub bench: &'static str,
    /// Whether to print JSON.
    pub json: bool,
}

impl Output {
    /// Prints two rates that were measured alternately, ours first. A larger ratio is better. The
    /// round with the median ratio is shown, because other load on the machine slows down both
    /// sides.
    pub fn rates(&self, case: &str, mut rounds: Vec<(f64, f64)>) {
        rounds.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let (ours, raw) = rounds[rounds.len() / 2];
        self.ratio(case, ours, raw, ours / raw, "messages/s");
    }

    /// Prints a figure beside its baseline. A larger `ratio` is better.
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

    /// Prints a figure without a baseline.
    pub fn figure(&self, case: &str, ours: f64, unit: &str) {
        let Self { bench, json } = self;
        if *json {
            println!(r#"{{"bench":"{bench}","case":"{case}","ours":{ours:.3},"unit":"{unit}"}}"#);
        } else {
            println!("{case:<72} {ours:>14.3} {:>14} {:>7}  {unit}", "", "");
        }
    }

    /// Prints lateness in milliseconds.
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

/// The median: machines are shared, so a single slow round is not representative.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Pairs of rates that were measured alternately.
pub fn in_turns(ours: &[f64], raw: &[f64]) -> Vec<(f64, f64)> {
    ours.iter().copied().zip(raw.iter().copied()).collect()
}
