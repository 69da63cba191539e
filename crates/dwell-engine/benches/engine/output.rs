//! Figures, for people or for programs.

/// Where figures go.
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// A figure beside the bare thing's: `ratio` is better when larger.
    pub(crate) fn ratio(&self, case: &str, ours: f64, raw: f64, ratio: f64, unit: &str) {
        if self.json {
            println!(
                r#"{{"bench":"core","case":"{case}","ours":{ours:.1},"raw":{raw:.1},"ratio":{ratio:.3},"unit":"{unit}"}}"#
            );
        } else {
            println!("{case:<58} {ours:>14.1} {raw:>14.1} {ratio:>7.2}  {unit}");
        }
    }

    /// A figure that stands alone.
    pub(crate) fn figure(&self, case: &str, ours: f64, unit: &str) {
        if self.json {
            println!(r#"{{"bench":"core","case":"{case}","ours":{ours:.1},"unit":"{unit}"}}"#);
        } else {
            println!("{case:<58} {ours:>14.1} {:>14} {:>7}  {unit}", "", "");
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
                r#"{{"bench":"core","case":"{case}","p50_ms":{p50:.3},"p99_ms":{p99:.3},"max_ms":{max:.3},"early":{early}}}"#
            );
        } else {
            println!("{case:<58} p50 {p50:>9.3} ms  p99 {p99:>9.3} ms  max {max:>9.3} ms  early {early}");
        }
    }
}

/// The middle of some figures: the machines are shared, and one slow round says nothing.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
