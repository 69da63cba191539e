//! Figures, for people or for programs.

/// Where figures go.
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// Two rates that were measured in turns; the ratio is better when larger. Of all rounds it shows the one whose
    /// ratio is in the middle: the machine is shared, and a neighbour who slows down both at once does no harm to a
    /// ratio.
    pub(crate) fn rates(&self, case: &str, ours: &[f64], raw: &[f64]) {
        let mut rounds: Vec<_> = ours.iter().zip(raw).collect();
        rounds.sort_by(|(ours, raw), (other_ours, other_raw)| {
            (*ours / *raw).total_cmp(&(*other_ours / *other_raw))
        });
        let (ours, raw) = rounds[rounds.len() / 2];
        let ratio = ours / raw;
        if self.json {
            println!(
                r#"{{"bench":"bus","case":"{case}","ours":{ours:.1},"raw":{raw:.1},"ratio":{ratio:.3},"unit":"messages/s"}}"#
            );
        } else {
            println!("{case:<70} {ours:>12.1} {raw:>12.1} {ratio:>6.2}  messages/s");
        }
    }

    /// A figure that stands alone.
    pub(crate) fn figure(&self, case: &str, ours: f64, unit: &str) {
        if self.json {
            println!(r#"{{"bench":"bus","case":"{case}","ours":{ours:.1},"unit":"{unit}"}}"#);
        } else {
            println!("{case:<70} {ours:>12.1} {:>12} {:>6}  {unit}", "", "");
        }
    }
}

/// The middle of some figures.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
