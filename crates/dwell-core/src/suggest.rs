//! Suggestions for misspelt names: "did you mean …?".

use std::cmp::Reverse;

/// Returns the known name that is closest to `given`, if it is close enough: at most one edit for
/// every three letters. An edit adds, removes or replaces a letter, or swaps two neighbours. Case
/// is ignored. Of equally close names, the one with the longest common prefix is returned.
///
/// ```
/// use dwell_core::suggest;
///
/// assert_eq!(suggest("capasity", ["lease", "capacity"]), Some("capacity"));
/// assert_eq!(suggest("colour", ["lease", "capacity"]), None);
/// ```
pub fn suggest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = letters(given);
    known
        .into_iter()
        .filter_map(|name| {
            let letters = letters(name);
            let allowed = letters.len() / 3;
            // This also limits the work for a very long `given`.
            if letters.len().abs_diff(given.len()) > allowed {
                return None;
            }
            let slips = distance(&given, &letters);
            let begins = given.iter().zip(&letters).take_while(|(given, known)| given == known).count();
            (slips <= allowed).then_some((slips, Reverse(begins), name))
        })
        .min_by_key(|(slips, begins, _)| (*slips, *begins))
        .map(|(_, _, name)| name)
}

fn letters(text: &str) -> Vec<char> {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// Returns the number of edits from `a` to `b`, with a swap of neighbours as one edit (optimal
/// string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, other) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != other);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == b[j - 1] && a[i - 1] == *other {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(a: &str, b: &str) -> usize {
        distance(&letters(a), &letters(b))
    }

    #[test]
    fn an_edit_adds_removes_replaces_or_swaps() {
        assert_eq!(edits("lease", "lease"), 0);
        assert_eq!(edits("leasse", "lease"), 1);
        assert_eq!(edits("lese", "lease"), 1);
        assert_eq!(edits("leaze", "lease"), 1);
        assert_eq!(edits("laese", "lease"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "lease"), 5);
        assert_eq!(edits("lease", ""), 5);
    }

    #[test]
    fn the_closest_name_is_suggested() {
        let schemes = ["memory", "sqlite", "redis", "kafka", "amqp", "postgres"];
        for (given, meant) in [
            ("reddis", "redis"),
            ("kakfa", "kafka"),
            ("KAFKA", "kafka"),
            ("sqlite3", "sqlite"),
            ("amqps", "amqp"),
            ("postgresql", "postgres"),
            ("memroy", "memory"),
        ] {
            assert_eq!(suggest(given, schemes), Some(meant), "{given}");
        }
        assert_eq!(suggest("max_retrys", ["max_entries", "max_retries"]), Some("max_retries"));
        assert_eq!(suggest("max_retry", ["base_delay", "max_delay", "max_retries"]), Some("max_retries"));
    }

    #[test]
    fn nothing_is_suggested_when_nothing_is_close() {
        for given in ["", "x", "rabbitmq", "redisredisredis", &"r".repeat(1_000_000)] {
            assert_eq!(suggest(given, ["memory", "redis", "kafka"]), None);
        }
        assert_eq!(suggest("redis", []), None);
    }

    #[test]
    fn names_of_one_or_two_letters_have_to_match_exactly() {
        assert_eq!(suggest("M", ["s", "m"]), Some("m"));
        assert_eq!(suggest("x", ["s", "m"]), None);
        assert_eq!(suggest("us", ["ms"]), None);
    }
}
