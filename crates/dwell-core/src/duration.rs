//! Durations as text: `250ms`, `90s`, `15m`, `1h30m`, `5d`, `2w`, or ISO 8601 such as `PT15M`.

use crate::{Error, ErrorKind, Result, quote::quote, suggest};
use std::{fmt::Write as _, time::Duration};

struct Unit {
    symbol: &'static str,
    word: &'static str,
    millis: u64,
}

/// Units from large to small, the order in which they are written.
const UNITS: [Unit; 6] = [
    Unit { symbol: "w", word: "weeks", millis: 604_800_000 },
    Unit { symbol: "d", word: "days", millis: 86_400_000 },
    Unit { symbol: "h", word: "hours", millis: 3_600_000 },
    Unit { symbol: "m", word: "minutes", millis: 60_000 },
    Unit { symbol: "s", word: "seconds", millis: 1_000 },
    Unit { symbol: "ms", word: "milliseconds", millis: 1 },
];
const WEEKS: usize = 0;
const DAYS: usize = 1;
const HOURS: usize = 2;
const MINUTES: usize = 3;
const SECONDS: usize = 4;

/// Common spellings of units, and the symbol of each.
const MEANT: [(&str, &str); 22] = [
    ("w", "w"),
    ("wk", "w"),
    ("week", "w"),
    ("weeks", "w"),
    ("d", "d"),
    ("day", "d"),
    ("days", "d"),
    ("h", "h"),
    ("hr", "h"),
    ("hrs", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("m", "m"),
    ("min", "m"),
    ("minutes", "m"),
    ("s", "s"),
    ("sec", "s"),
    ("seconds", "s"),
    ("ms", "ms"),
    ("msec", "ms"),
    ("millis", "ms"),
    ("milliseconds", "ms"),
];

/// Parses a duration in whole milliseconds. A finer fraction is rounded *up*, so that nothing is
/// early.
///
/// Two forms are accepted:
///
/// * Numbers with the units `w d h m s ms`, from large to small, each at most once. Spaces are
///   allowed between the parts but not inside them.
/// * ISO 8601 without years and months, in upper or lower case.
///
/// The last number may have a decimal fraction. A number without a unit is refused, as are negative
/// durations and those of 2^64 milliseconds or more.
///
/// ```
/// use dwell_core::duration::parse_duration;
/// use std::time::Duration;
///
/// assert_eq!(parse_duration("1h30m")?, Duration::from_secs(5400));
/// assert_eq!(parse_duration("1.5s")?, Duration::from_millis(1500));
/// assert_eq!(parse_duration("P1DT12H")?, Duration::from_secs(129_600));
/// assert!(parse_duration("90").unwrap_err().to_string().contains("which unit?"));
/// # Ok::<(), dwell_core::Error>(())
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    let millis = if text.is_empty() {
        Err("is empty".to_owned())
    } else if text.trim() != text {
        Err("has spaces around it".to_owned())
    } else if text.starts_with('-') {
        Err("is negative".to_owned())
    } else if let Some(parts) = text.strip_prefix(['P', 'p']) {
        parse_iso(parts)
    } else {
        parse_units(text)
    };
    millis.map(Duration::from_millis).map_err(|problem| {
        let text = quote(text);
        Error::new(
            ErrorKind::Invalid,
            format!("the duration {text} {problem}; write it like `90s`, `1h30m` or `PT15M`"),
        )
    })
}

/// Formats a duration, rounded *up* to a millisecond, so that [`parse_duration`] returns the same
/// one. A duration of more than 2^64 milliseconds (half a billion years) is written as 2^64 - 1
/// milliseconds.
///
/// ```
/// use dwell_core::duration::format_duration;
/// use std::time::Duration;
///
/// assert_eq!(format_duration(Duration::from_secs(5400)), "1h30m");
/// assert_eq!(format_duration(Duration::from_millis(1250)), "1.25s");
/// assert_eq!(format_duration(Duration::from_micros(1)), "1ms");
/// ```
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    // Weeks are used only alone: `30d` is easier to read than `4w2d`.
    if rest.is_multiple_of(UNITS[WEEKS].millis) {
        return format!("{}w", rest / UNITS[WEEKS].millis);
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    for Unit { symbol, millis, .. } in &UNITS[DAYS..] {
        let count = rest / millis;
        if count == 0 {
            continue;
        }
        rest %= millis;
        let _ = write!(text, "{count}");
        if *symbol == "s" && rest > 0 {
            let _ = write!(text, ".{rest:03}");
            text.truncate(text.trim_end_matches('0').len());
            rest = 0;
        }
        text.push_str(symbol);
    }
    text
}

/// For `#[serde(with = "dwell_core::duration::serde_text")]`: a duration that is written as
/// `"15m"`.
///
/// ```
/// use serde::Deserialize;
/// use std::time::Duration;
///
/// #[derive(Deserialize)]
/// struct Settings {
///     #[serde(with = "dwell_core::duration::serde_text")]
///     lease: Duration,
///     #[serde(default, with = "dwell_core::duration::serde_text::option")]
///     timeout: Option<Duration>,
/// }
/// ```
pub mod serde_text {
    use super::{format_duration, parse_duration};
    use serde::{Deserializer, Serializer, de};
    use std::{fmt, time::Duration};

    /// Serialises as [`format_duration`] does.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*duration))
    }

    /// Deserialises as [`parse_duration`] does.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_str(Text)
    }

    struct Text;

    impl de::Visitor<'_> for Text {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration in text, such as \"90s\" or \"1h30m\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).map_err(E::custom)
        }

        // A number without a unit gets the same error as its text.
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Duration, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Duration, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Duration, E> {
            self.visit_str(&number.to_string())
        }
    }

    /// For an `Option`. With `#[serde(default)]` the field may be left out.
    pub mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};
        use std::time::Duration;

        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        struct Text(#[serde(with = "super")] Duration);

        /// Serialises as [`format_duration`](crate::format_duration) does, or as none.
        pub fn serialize<S: Serializer>(
            duration: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            duration.map(Text).serialize(serializer)
        }

        /// Deserialises as [`parse_duration`](crate::parse_duration) does, if the value is present.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(duration)| duration))
        }
    }
}

/// Returns `0.{digits}` of a unit, rounded up, for any number of digits. Rounding up at each digit
/// from the right gives the same result as rounding up once, since ⌈(m + x) / 10⌉ = ⌈(m + ⌈x⌉) /
/// 10⌉ for a whole m.
pub(crate) fn fraction_of(unit: u64, digits: &str) -> u64 {
    digits.bytes().rev().fold(0, |rest, digit| (u64::from(digit - b'0') * unit + rest).div_ceil(10))
}

/// Splits the leading ASCII digits off.
pub(crate) fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn parse_units(text: &str) -> Result<u64, String> {
    let mut sum = Sum::default();
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = Number::split(rest)?;
        let (symbol, after) = after.split_at(after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len()));
        if symbol.is_empty() && number.text == text {
            return Err(
                "is a bare number: which unit? Add `s` for seconds, or `ms` for milliseconds".to_owned()
            );
        }
        if symbol.is_empty() {
            return Err(format!("has no unit directly after {}", quote(number.text)));
        }
        sum.add(&number, unit_of(symbol)?)?;
        rest = after.trim_start_matches(' ');
    }
    Ok(sum.millis)
}

fn unit_of(symbol: &str) -> Result<usize, String> {
    if let Some(unit) = UNITS.iter().position(|unit| unit.symbol == symbol) {
        return Ok(unit);
    }
    let shown = quote(symbol);
    match symbol.to_lowercase().as_str() {
        "y" | "yr" | "yrs" | "year" | "years" | "mo" | "mon" | "month" | "months" => {
            return Err(format!("has {shown}, a unit without a fixed length: count in days, `d`"));
        }
        "us" | "µs" | "μs" | "ns" | "micros" | "nanos" => {
            return Err(format!("has {shown}, but the smallest unit is the millisecond, `ms`"));
        }
        _ => {}
    }
    let word = suggest(symbol, MEANT.map(|(word, _)| word));
    match MEANT.into_iter().find(|(known, _)| Some(*known) == word) {
        Some((_, meant)) => Err(format!("has the unknown unit {shown}: did you mean `{meant}`?")),
        None => Err(format!("has the unknown unit {shown}: the units are w d h m s ms")),
    }
}

/// Parses the parts after the `P`.
fn parse_iso(parts: &str) -> Result<u64, String> {
    let mut sum = Sum::default();
    let mut rest = parts;
    let mut time = false;
    while !rest.is_empty() {
        if !time && let Some(after) = rest.strip_prefix(['T', 't']) {
            time = true;
            rest = after;
            if rest.is_empty() {
                return Err("ends after the `T`".to_owned());
            }
        }
        let (number, after) = Number::split(rest)?;
        let Some(designator) = after.chars().next() else {
            return Err(format!("has no unit after {}", quote(number.text)));
        };
        rest = &after[designator.len_utf8()..];
        let unit = match (time, designator.to_ascii_uppercase()) {
            (false, 'W') => WEEKS,
            (false, 'D') => DAYS,
            (true, 'H') => HOURS,
            (true, 'M') => MINUTES,
            (true, 'S') => SECONDS,
            (false, 'Y') => return Err("has years, which have no fixed length: count in days".to_owned()),
            (false, 'M') => {
                return Err(
                    "has months, which have no fixed length: count in days; minutes come after a `T`"
                        .to_owned(),
                );
            }
            (false, 'H' | 'S') => return Err("has hours or seconds without a `T` before them".to_owned()),
            (true, 'W' | 'D') => return Err("has weeks or days after the `T`".to_owned()),
            _ => {
                let shown = quote(designator.encode_utf8(&mut [0; 4]));
                return Err(format!(
                    "has the unknown unit {shown}: the units are W D, and after a `T` H M S"
                ));
            }
        };
        sum.add(&number, unit)?;
    }
    if sum.last.is_none() { Err("has no parts".to_owned()) } else { Ok(sum.millis) }
}

/// A decimal number without a sign.
struct Number<'a> {
    text: &'a str,
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Number<'a> {
    /// Splits a number off the start.
    fn split(text: &'a str) -> Result<(Self, &'a str), String> {
        let (whole, after) = split_digits(text);
        if whole.is_empty() {
            return Err(match text.chars().next() {
                Some('-') => "has a negative part".to_owned(),
                Some(other) => {
                    format!("has {} where a number belongs", quote(other.encode_utf8(&mut [0; 4])))
                }
                None => "ends where a number belongs".to_owned(),
            });
        }
        if after.starts_with(',') {
            return Err("has a comma: the decimal sign is a point".to_owned());
        }
        let Some(after) = after.strip_prefix('.') else {
            return Ok((Self { text: whole, whole, fraction: "" }, after));
        };
        let (fraction, after) = split_digits(after);
        if fraction.is_empty() {
            return Err("has no digit after the point".to_owned());
        }
        let text = &text[..text.len() - after.len()];
        Ok((Self { text, whole, fraction }, after))
    }
}

/// Sum of the parts of a duration. It also checks their order.
#[derive(Default)]
struct Sum {
    millis: u64,
    last: Option<usize>,
    ended: bool,
}

impl Sum {
    fn add(&mut self, number: &Number<'_>, unit: usize) -> Result<(), String> {
        let Unit { word, millis, .. } = UNITS[unit];
        match self.last {
            Some(last) if last == unit => return Err(format!("has {word} twice")),
            Some(last) if last > unit => {
                return Err(format!("has {word} after {}: the larger unit comes first", UNITS[last].word));
            }
            _ => {}
        }
        if self.ended {
            return Err("has a fraction before its last part".to_owned());
        }
        let whole = number.whole.parse::<u64>().ok();
        self.millis = whole
            .and_then(|whole| whole.checked_mul(millis))
            .and_then(|part| part.checked_add(fraction_of(millis, number.fraction)))
            .and_then(|part| part.checked_add(self.millis))
            .ok_or("is longer than 2^64 milliseconds, half a billion years")?;
        self.last = Some(unit);
        self.ended = !number.fraction.is_empty();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
