//! Points in time as text: RFC 3339 with an offset, or milliseconds since the epoch.

use crate::{
    Error, ErrorKind, Result, Timestamp,
    duration::{fraction_of, split_digits},
    quote::quote,
};

const DAY: i64 = 86_400_000;
/// 0000-01-01T00:00:00.000Z.
const FIRST: i64 = -62_167_219_200_000;
/// 9999-12-31T23:59:59.999Z.
const LAST: i64 = 253_402_300_799_999;
/// An integer below this would be a time in 1973 or earlier, and is more likely a recent time in
/// seconds.
const LEAST_INTEGER: i64 = 100_000_000_000;

impl Timestamp {
    /// Parses RFC 3339 with an offset, or a whole number of milliseconds since 1970.
    ///
    /// A fraction finer than a millisecond is rounded *up*, so that nothing is early. A leap
    /// second, `23:59:60` UTC at the end of a month, is the second after it.
    ///
    /// These are refused:
    ///
    /// * a time without an offset, because its meaning would depend on the reader;
    /// * an integer below 10^11, which looks like seconds;
    /// * a time outside the years 0000 to 9999.
    ///
    /// ```
    /// use dwell_core::Timestamp;
    ///
    /// let time = Timestamp::parse("2026-11-15T10:00:00+02:00")?;
    /// assert_eq!(time, Timestamp::parse("1794729600000")?);
    /// assert_eq!(time.to_rfc3339(), "2026-11-15T08:00:00.000Z");
    /// # Ok::<(), dwell_core::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let millis = if is_integer { parse_integer(text) } else { parse_rfc3339(text) };
        millis.map(Self).map_err(|problem| {
            let text = quote(text);
            Error::new(
                ErrorKind::Invalid,
                format!(
                    "the time {text} {problem}; write it like `2026-11-15T10:00:00Z`, \
                     or as milliseconds since 1970, like `1794736800000`"
                ),
            )
        })
    }

    /// Formats the time as RFC 3339 in UTC, with milliseconds. RFC 3339 ends at the years 0000 and
    /// 9999. Outside them, the year has a sign and as many digits as it needs.
    pub fn to_rfc3339(self) -> String {
        let (year, month, day) = civil_from_days(self.0.div_euclid(DAY));
        let time = self.0.rem_euclid(DAY);
        let (hour, minute) = (time / 3_600_000, time / 60_000 % 60);
        let (second, millis) = (time / 1_000 % 60, time % 1_000);
        let year = if (0..=9999).contains(&year) { format!("{year:04}") } else { format!("{year:+05}") };
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

fn parse_integer(text: &str) -> Result<i64, String> {
    // A number that does not fit is beyond the year 9999, or far before 1970.
    let millis = text.parse().unwrap_or(if text.starts_with('-') { i64::MIN } else { i64::MAX });
    if millis > LAST {
        return Err("is beyond the year 9999 when read as milliseconds".to_owned());
    }
    if millis < LEAST_INTEGER {
        return Err("looks like seconds: it is read as milliseconds".to_owned());
    }
    Ok(millis)
}

fn parse_rfc3339(text: &str) -> Result<i64, String> {
    let mut rest = text;
    let year = field(&mut rest, "", 4, "year", 0..=9999)?;
    let month = field(&mut rest, "-", 2, "month", 1..=12)?;
    let day = field(&mut rest, "-", 2, "day", 1..=31)?;
    let length = days_in_month(year, month);
    if day > length {
        return Err(format!("has day {day}, but {year:04}-{month:02} has {length} days"));
    }
    if rest.is_empty() {
        return Err("has no time of day and no offset".to_owned());
    }
    rest = rest.strip_prefix(['T', 't', ' ']).ok_or("has no `T` after the date")?;
    let hour = field(&mut rest, "", 2, "hour", 0..=23)?;
    let minute = field(&mut rest, ":", 2, "minute", 0..=59)?;
    let second = field(&mut rest, ":", 2, "second", 0..=60)?;
    let mut millis = 0;
    if let Some(after) = rest.strip_prefix('.') {
        let (fraction, after) = split_digits(after);
        if fraction.is_empty() {
            return Err("has no digit after the point".to_owned());
        }
        millis = i64::try_from(fraction_of(1_000, fraction)).unwrap_or(1_000);
        rest = after;
    }
    let offset = parse_offset(rest)?;

    let days = days_from_civil(year, month, day);
    let seconds = days * 86_400 + hour * 3_600 + (minute - offset) * 60 + second;
    if second == 60 && !is_start_of_month(seconds) {
        return Err("has second 60, which only the last minute of a month, in UTC, can have".to_owned());
    }
    let time = seconds * 1_000 + millis;
    if !(FIRST..=LAST).contains(&time) {
        return Err("is outside the years 0000 to 9999 in UTC".to_owned());
    }
    Ok(time)
}

/// Returns the minutes east of UTC.
fn parse_offset(text: &str) -> Result<i64, String> {
    let mut rest = match text.chars().next() {
        None => return Err("has no offset: add `Z` for UTC, or one like `+02:00`".to_owned()),
        Some('Z' | 'z') if text.len() == 1 => return Ok(0),
        Some('+' | '-') => &text[1..],
        // In a query string, `+02:00` becomes ` 02:00`.
        Some(' ') => return Err("has no offset after the space: a `+` in a URL is written `%2B`".to_owned()),
        Some(_) => return Err(format!("has {} where an offset like `Z` or `+02:00` belongs", quote(text))),
    };
    let hours = field(&mut rest, "", 2, "offset hour", 0..=23)?;
    let minutes = field(&mut rest, ":", 2, "offset minute", 0..=59)?;
    if !rest.is_empty() {
        return Err(format!("has {} after the offset", quote(rest)));
    }
    let offset = hours * 60 + minutes;
    Ok(if text.starts_with('-') { -offset } else { offset })
}

/// Splits a number of exactly `width` digits off the start, after `separator`.
fn field(
    rest: &mut &str,
    separator: &str,
    width: usize,
    name: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Result<i64, String> {
    let missing = || {
        let after = if separator.is_empty() { String::new() } else { format!(" after a `{separator}`") };
        format!("has no {name} of {width} digits{after} in its place")
    };
    let (digits, after) = split_digits(rest.strip_prefix(separator).ok_or_else(missing)?);
    if digits.len() != width {
        return Err(missing());
    }
    let number = digits.parse().map_err(|_| missing())?;
    if !range.contains(&number) {
        return Err(format!("has {name} {number}, which is outside {} to {}", range.start(), range.end()));
    }
    *rest = after;
    Ok(number)
}

fn is_start_of_month(seconds: i64) -> bool {
    seconds % 86_400 == 0 && civil_from_days(seconds / 86_400).2 == 1
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days in 400 years, after which the calendar repeats.
const ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;

/// Returns the days since 1970-01-01 of a date in the Gregorian calendar. Years start in March, so
/// that the leap day is the last day of a year and the lengths of the months follow (153 m + 2) /
/// 5.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    year.div_euclid(400) * ERA + day_of_era - EPOCH
}

/// Returns year, month and day: the reverse of `days_from_civil`.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let day_of_era = days.rem_euclid(ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + days.div_euclid(ERA) * 400;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> i64 {
        Timestamp::parse(text).unwrap_or_else(|error| panic!("{error}")).0
    }

    /// Times with known milliseconds, from GNU date.
    const KNOWN: [(&str, i64); 14] = [
        ("1970-01-01T00:00:00.000Z", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2001-09-09T01:46:40.000Z", 1_000_000_000_000),
        ("2000-02-29T12:00:00.000Z", 951_825_600_000),
        ("1900-03-01T00:00:00.000Z", -2_203_891_200_000),
        ("2026-11-15T10:00:00.000Z", 1_794_736_800_000),
        ("2038-01-19T03:14:07.000Z", 2_147_483_647_000),
        ("2100-02-28T23:59:59.000Z", 4_107_542_399_000),
        ("2100-03-01T00:00:00.000Z", 4_107_542_400_000),
        ("1985-04-12T23:20:50.520Z", 482_196_050_520),
        ("1582-10-15T00:00:00.000Z", -12_219_292_800_000),
        ("0000-01-01T00:00:00.000Z", FIRST),
        ("0001-01-01T00:00:00.000Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", LAST),
    ];

    #[test]
    fn known_times_are_read_and_written() {
        for (text, expected) in KNOWN {
            assert_eq!(millis(text), expected, "{text}");
            assert_eq!(Timestamp(expected).to_rfc3339(), text);
        }
    }

    #[test]
    fn every_day_of_ten_thousand_years_is_converted() {
        let mut days = FIRST / DAY;
        for year in 0..=9999 {
            for month in 1..=12 {
                for day in 1..=days_in_month(year, month) {
                    assert_eq!(days_from_civil(year, month, day), days);
                    assert_eq!(civil_from_days(days), (year, month, day));
                    days += 1;
                }
            }
        }
        assert_eq!(days, LAST / DAY + 1);
    }

    #[test]
    fn offsets_are_subtracted() {
        let noon = millis("2026-11-15T12:00:00Z");
        for text in [
            "2026-11-15T14:00:00+02:00",
            "2026-11-15T06:30:00-05:30",
            "2026-11-16T01:00:00+13:00",
            "2026-11-14T12:01:00-23:59",
            "2026-11-15T12:00:00+00:00",
            "2026-11-15T12:00:00-00:00",
            "2026-11-15t12:00:00z",
            "2026-11-15 12:00:00Z",
            "2026-11-15 12:00:00.0Z",
        ] {
            assert_eq!(millis(text), noon, "{text}");
        }
        assert_eq!(millis("2027-01-01T01:00:00+02:00"), millis("2026-12-31T23:00:00Z"));
    }

    #[test]
    fn a_fraction_finer_than_a_millisecond_is_rounded_up() {
        for (fraction, expected) in [
            ("5", 500),
            ("52", 520),
            ("123", 123),
            ("123000000", 123),
            ("1230001", 124),
            ("000000000000000000000000000001", 1),
            ("9999", 1_000),
        ] {
            assert_eq!(millis(&format!("1970-01-01T00:00:00.{fraction}Z")), expected, "{fraction}");
            assert_eq!(millis(&format!("1969-12-31T23:59:58.{fraction}Z")), expected - 2_000, "{fraction}");
        }
    }

    #[test]
    fn a_leap_second_is_the_second_after() {
        for text in [
            "2016-12-31T23:59:60Z",
            "2016-12-31T15:59:60-08:00",
            "2017-01-01T00:59:60+01:00",
            "2017-01-01T00:00:00Z",
        ] {
            assert_eq!(millis(text), 1_483_228_800_000, "{text}");
        }
        assert_eq!(millis("1990-06-30T23:59:60.5Z"), millis("1990-07-01T00:00:00.5Z"));
    }

    #[test]
    fn milliseconds_are_read() {
        for expected in [100_000_000_000, 1_794_736_800_000, LAST] {
            assert_eq!(millis(&expected.to_string()), expected);
        }
    }

    #[test]
    fn invalid_times_are_refused_with_the_reason() {
        for (text, why) in [
            ("", "no year of 4 digits"),
            ("-", "no year of 4 digits"),
            ("tomorrow", "no year of 4 digits"),
            ("0", "looks like seconds"),
            ("-1", "looks like seconds"),
            ("1794736800", "looks like seconds"),
            ("99999999999", "looks like seconds"),
            ("-99999999999999999999", "looks like seconds"),
            ("253402300800000", "beyond the year 9999"),
            ("1794736800000000", "beyond the year 9999"),
            ("99999999999999999999999", "beyond the year 9999"),
            ("1794736800000.5", "no year of 4 digits"),
            ("+1794736800000", "no year of 4 digits"),
            (" 1794736800000", "no year of 4 digits"),
            ("1.79e12", "no year of 4 digits"),
            ("26-11-15T10:00:00Z", "no year of 4 digits"),
            ("+12026-11-15T10:00:00Z", "no year of 4 digits"),
            ("-0001-11-15T10:00:00Z", "no year of 4 digits"),
            ("20261115T100000Z", "no year of 4 digits"),
            ("2026", "looks like seconds"),
            ("2026/11/15T10:00:00Z", "no month of 2 digits after a `-`"),
            ("2026-1-15T10:00:00Z", "no month of 2 digits"),
            ("2026-00-15T10:00:00Z", "month 0"),
            ("2026-13-15T10:00:00Z", "month 13"),
            ("2026-W46-7T10:00:00Z", "no month of 2 digits"),
            ("2026-11-5T10:00:00Z", "no day of 2 digits"),
            ("2026-11-00T10:00:00Z", "day 0"),
            ("2026-11-32T10:00:00Z", "day 32"),
            ("2026-11-31T10:00:00Z", "2026-11 has 30 days"),
            ("2026-02-30T10:00:00Z", "2026-02 has 28 days"),
            ("2026-02-29T10:00:00Z", "2026-02 has 28 days"),
            ("2100-02-29T10:00:00Z", "2100-02 has 28 days"),
            ("2028-02-30T10:00:00Z", "2028-02 has 29 days"),
            ("2026-11-15", "no time of day and no offset"),
            ("2026-11-15Z", "no `T` after the date"),
            ("2026-11-15_10:00:00Z", "no `T` after the date"),
            ("2026-11-15T", "no hour of 2 digits"),
            ("2026-11-15T  10:00:00Z", "no hour of 2 digits"),
            ("2026-11-15T24:00:00Z", "hour 24"),
            ("2026-11-15T10", "no minute of 2 digits"),
            ("2026-11-15T10:60:00Z", "minute 60"),
            ("2026-11-15T10:00Z", "no second of 2 digits"),
            ("2026-11-15T10:00:61Z", "second 61"),
            ("2026-11-15T10:00:60Z", "second 60"),
            ("2026-11-30T23:59:60+01:00", "second 60"),
            ("2026-11-15T23:59:60Z", "second 60"),
            ("2026-11-15T10:00:00.Z", "no digit after the point"),
            ("2026-11-15T10:00:00,5Z", "where an offset"),
            ("2026-11-15T10:00:00", "has no offset: add `Z`"),
            ("2026-11-15T10:00:00.123", "has no offset: add `Z`"),
            ("2026-11-15T10:00:00ZZ", "where an offset"),
            ("2026-11-15T10:00:00Z ", "where an offset"),
            ("2026-11-15T10:00:00é", "where an offset"),
            ("2026-11-15T10:00:00 02:00", "written `%2B`"),
            ("2026-11-15T10:00:00 CET", "no offset after the space"),
            ("2026-11-15T10:00:00+0200", "no offset hour of 2 digits"),
            ("2026-11-15T10:00:00+02", "no offset minute of 2 digits"),
            ("2026-11-15T10:00:00+24:00", "offset hour 24"),
            ("2026-11-15T10:00:00+02:60", "offset minute 60"),
            ("2026-11-15T10:00:00+02:00[Europe/Berlin]", "after the offset"),
            ("2026-11-15T10:00:00−02:00", "where an offset"),
            ("0000-01-01T00:00:00+00:01", "outside the years"),
            ("9999-12-31T23:59:59-00:01", "outside the years"),
            ("9999-12-31T23:59:59.9991Z", "outside the years"),
            ("２０２６-11-15T10:00:00Z", "no year of 4 digits"),
        ] {
            let error = Timestamp::parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let shown = error.to_string();
            assert!(shown.contains(why), "{text}: {shown}");
            assert!(shown.contains(&quote(text)), "{text}: {shown}");
            assert!(shown.contains("write it like `2026-11-15T10:00:00Z`"), "{text}: {shown}");
        }
    }

    #[test]
    fn years_outside_rfc_3339_have_a_sign() {
        for (millis, expected) in [
            (LAST + 1, "+10000-01-01T00:00:00.000Z"),
            (FIRST - 1, "-0001-12-31T23:59:59.999Z"),
            (i64::MAX, "+292278994-08-17T07:12:55.807Z"),
            (i64::MIN, "-292275055-05-16T16:47:04.192Z"),
        ] {
            assert_eq!(Timestamp(millis).to_rfc3339(), expected);
        }
    }
}
