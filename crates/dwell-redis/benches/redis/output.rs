//! Figures, for people or for programs.

/// Where figures go.
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// Two rates that were measured in turns; the ratio is better when larger. Of all rounds it shows the one whose
    /// ratio is in the middle: the machine is shared, and a neighbour who slows down both at once does no harm to a
    /// ratio.
    pub(crate) fn rates(&self, case: &str, mut rounds: Vec<(f64, f64)>) {
        rounds.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let (ours, raw) = rounds[rounds.len() / 2];
        self.ratio(case, ours, raw, ours / raw, "messages/s");
    }

    /// A figure beside the bare thing's: `ratio` is better when larger.
    pub(crate) fn ratio(&self, case: &str, ours: f64, raw: f64, ratio: f64, unit: &str) {
        if self.json {
            println!(
                r#"{{"bench":"redis","case":"{case}","ours":{ours:.3},"raw":{raw:.3},"ratio":{ratio:.3},"unit":"{unit}"}}"#
            );
        } else {
            println!("{case:<72} {ours:>12.3} {raw:>12.3} {ratio:>7.2}  {unit}");
        }
    }

    /// A figure that stands alone.
    pub(crate) fn figure(&self, case: &str, ours: f64, unit: &str) {
        if self.json {
            println!(r#"{{"bench":"redis","case":"{case}","ours":{ours:.3},"unit":"{unit}"}}"#);
        } else {
            println!("{case:<72} {ours:>12.3} {:>12} {:>7}  {unit}", "", "");
        }
    }

    /// How late things were, in milliseconds.
    pub(crate) fn lateness(&self, case: &str, mut late: Vec<f64>) {
        late.sort_by(f64::total_cmp);
        let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
        let early = late.iter().filter(|late| **late < 0.0).count();
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        if self.json {
            println!(
                r#"{{"bench":"redis","case":"{case}","p50_ms":{p50:.3},"p99_ms":{p99:.3},"max_ms":{max:.3},"early":{early}}}"#
            );
        } else {
            println!("{case:<72} p50 {p50:>8.3} ms  p99 {p99:>8.3} ms  max {max:>8.3} ms  early {early}");
        }
    }
}
