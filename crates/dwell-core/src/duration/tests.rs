use super::*;
use serde::{
    Deserializer,
    de::{
        IntoDeserializer, Visitor,
        value::{
            Error as ValueError, F64Deserializer, I64Deserializer, StrDeserializer, U64Deserializer,
            UnitDeserializer,
        },
    },
    forward_to_deserialize_any,
};
use std::fmt;

fn millis(text: &str) -> u64 {
    let duration = parse_duration(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(duration.subsec_nanos() % 1_000_000, 0, "{text} is not whole milliseconds");
    u64::try_from(duration.as_millis()).unwrap()
}

#[test]
fn durations_are_read_in_units() {
    for (text, expected) in [
        ("0s", 0),
        ("250ms", 250),
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h30m", 5_400_000),
        ("5d", 432_000_000),
        ("2w", 1_209_600_000),
        ("007m", 420_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("1h 30m", 5_400_000),
        ("1h  30m 5s", 5_405_000),
        ("1.5s", 1_500),
        ("1h1.5m", 3_690_000),
        ("0.25d", 21_600_000),
        ("18446744073709551615ms", u64::MAX),
    ] {
        assert_eq!(millis(text), expected, "{text}");
    }
}

#[test]
fn durations_are_read_in_iso_8601() {
    for (text, expected) in [
        ("PT15M", 900_000),
        ("P5D", 432_000_000),
        ("P2W", 1_209_600_000),
        ("P1DT2H30.5S", 93_630_500),
        ("P1W1D", 691_200_000),
        ("PT0S", 0),
        ("P0D", 0),
        ("PT36H", 129_600_000),
        ("P0.5D", 43_200_000),
        ("pt1h30m", 5_400_000),
    ] {
        assert_eq!(millis(text), expected, "{text}");
    }
}

#[test]
fn a_fraction_finer_than_a_millisecond_is_rounded_up() {
    for (text, expected) in [
        ("0.1ms", 1),
        ("1.0000ms", 1),
        ("1.0000001ms", 2),
        ("1.0005s", 1_001),
        ("1.001s", 1_001),
        ("0.333333333333333333333333333333h", 1_200_000),
        ("0.3333333333333333h", 1_200_000),
        ("0.00000000000000000000000000000000000000001s", 1),
        ("PT0.0001S", 1),
    ] {
        assert_eq!(millis(text), expected, "{text}");
    }
}

#[test]
fn invalid_durations_are_refused_with_the_reason() {
    for (text, why) in [
        ("", "is empty"),
        (" ", "spaces around"),
        ("15m ", "spaces around"),
        ("\t15m", "spaces around"),
        ("15m\n", "spaces around"),
        ("0", "which unit?"),
        ("90", "Add `s` for seconds"),
        ("1.5", "which unit?"),
        ("1h30", "no unit directly after `30`"),
        ("5 m", "no unit directly after `5`"),
        ("1 h 30 m", "no unit directly after `1`"),
        ("-5m", "is negative"),
        ("-PT5M", "is negative"),
        ("1h-5m", "has a negative part"),
        ("PT-5M", "has a negative part"),
        ("P-1D", "has a negative part"),
        ("+5m", "has `+` where a number belongs"),
        ("m", "has `m` where a number belongs"),
        ("soon", "has `s` where a number belongs"),
        (".5s", "has `.` where a number belongs"),
        ("5.s", "no digit after the point"),
        ("1..5s", "no digit after the point"),
        ("1,5s", "decimal sign is a point"),
        ("PT1,5S", "decimal sign is a point"),
        ("1.5h30m", "fraction before its last part"),
        ("P1.5DT1H", "fraction before its last part"),
        ("1e3s", "unknown unit `e`"),
        ("1_000s", "no unit directly after `1`"),
        ("1h, 30m", "has `,` where a number belongs"),
        ("1h\t30m", r"has `\t` where a number belongs"),
        ("５m", "has `５` where a number belongs"),
        ("1m1m", "minutes twice"),
        ("PT1M1M", "minutes twice"),
        ("30m1h", "hours after minutes"),
        ("5ms1s", "seconds after milliseconds"),
        ("PT5S1M", "minutes after seconds"),
        ("P1D1W", "weeks after days"),
        ("99999999999999999999s", "half a billion years"),
        ("18446744073709551616ms", "half a billion years"),
        ("18446744073709551615.1ms", "half a billion years"),
        ("18446744073709552s", "half a billion years"),
        ("30500568905w", "half a billion years"),
        ("30500568904w7d", "half a billion years"),
        ("P", "has no parts"),
        ("PT", "ends after the `T`"),
        ("P1DT", "ends after the `T`"),
        ("P5", "no unit after `5`"),
        ("PT5", "no unit after `5`"),
        ("P15M", "minutes come after a `T`"),
        ("P1Y", "years"),
        ("P1Y2M3D", "years"),
        ("P1H", "without a `T`"),
        ("P5S", "without a `T`"),
        ("PT1D", "after the `T`"),
        ("PT1W", "after the `T`"),
        ("PT1HT1M", "has `T` where a number belongs"),
        ("PT5X", "unknown unit `X`"),
        ("PT5é", "unknown unit `é`"),
        ("P 5D", "has ` ` where a number belongs"),
        ("P2026-01-01", "unknown unit `-`"),
    ] {
        let error = parse_duration(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let shown = error.to_string();
        assert!(shown.contains(why), "{text}: {shown}");
        assert!(shown.contains(&quote(text)), "{text}: {shown}");
        assert!(shown.contains("write it like `90s`"), "{text}: {shown}");
    }
}

#[test]
fn misspelt_units_get_a_suggestion() {
    for (text, meant) in [
        ("5min", "m"),
        ("5mins", "m"),
        ("5minutes", "m"),
        ("5minuts", "m"),
        ("5M", "m"),
        ("5sec", "s"),
        ("5secs", "s"),
        ("5second", "s"),
        ("5S", "s"),
        ("5hr", "h"),
        ("5hours", "h"),
        ("5day", "d"),
        ("5Days", "d"),
        ("5wk", "w"),
        ("5weeks", "w"),
        ("5msecs", "ms"),
        ("5MS", "ms"),
        ("5milliseconds", "ms"),
    ] {
        let shown = parse_duration(text).expect_err(text).to_string();
        assert!(shown.contains(&format!("did you mean `{meant}`?")), "{text}: {shown}");
    }
    for (text, why) in [
        ("1y", "count in days"),
        ("3mo", "count in days"),
        ("3months", "count in days"),
        ("5us", "smallest unit"),
        ("5µs", "smallest unit"),
        ("5ns", "smallest unit"),
        ("5fortnights", "the units are w d h m s ms"),
    ] {
        let shown = parse_duration(text).expect_err(text).to_string();
        assert!(shown.contains(why), "{text}: {shown}");
    }
}

#[test]
fn a_long_text_is_truncated_in_the_error() {
    let shown = parse_duration(&"9".repeat(100_000)).unwrap_err().to_string();
    assert!(shown.contains("which unit?") && shown.len() < 400, "{shown}");
}

#[test]
fn durations_are_written_short_and_readable() {
    for (millis, expected) in [
        (0, "0s"),
        (1, "1ms"),
        (250, "250ms"),
        (1_000, "1s"),
        (1_250, "1.25s"),
        (1_001, "1.001s"),
        (60_000, "1m"),
        (60_250, "1m250ms"),
        (90_000, "1m30s"),
        (5_400_000, "1h30m"),
        (3_600_001, "1h1ms"),
        (86_400_000, "1d"),
        (604_800_000, "1w"),
        (691_200_000, "8d"),
        (1_209_600_000, "2w"),
        (2_592_000_000, "30d"),
        (93_630_500, "1d2h30.5s"),
        (100_000, "1m40s"),
    ] {
        assert_eq!(format_duration(Duration::from_millis(millis)), expected);
        assert_eq!(parse_duration(expected).unwrap(), Duration::from_millis(millis));
    }
}

#[test]
fn writing_rounds_up_and_never_overflows() {
    assert_eq!(format_duration(Duration::from_nanos(1)), "1ms");
    assert_eq!(format_duration(Duration::from_nanos(999_000_001)), "1s");
    assert_eq!(format_duration(Duration::new(59, 999_999_999)), "1m");
    assert_eq!(millis(&format_duration(Duration::MAX)), u64::MAX);
}

/// Writes what serde writes: a formatter is a serialiser of text and refuses everything else.
struct Written(Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        serde_text::serialize(&self.0, f)
    }
}

/// Deserialises an optional text as self-describing formats do.
struct Field(Option<&'static str>);

impl<'de> Deserializer<'de> for Field {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.0 {
            Some(text) => visitor.visit_some(text.into_deserializer()),
            None => visitor.visit_none(),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[test]
fn serde_writes_and_reads_the_text() {
    assert_eq!(Written(Duration::from_secs(900)).to_string(), "15m");
    let text: StrDeserializer<'_, ValueError> = "1h30m".into_deserializer();
    assert_eq!(serde_text::deserialize(text).unwrap(), Duration::from_secs(5400));
}

#[test]
fn serde_reads_an_optional_text() {
    use serde_text::option::deserialize;
    assert_eq!(deserialize(Field(Some("1h30m"))).unwrap(), Some(Duration::from_secs(5400)));
    assert_eq!(deserialize(Field(None)).unwrap(), None);
    assert!(deserialize(Field(Some("90"))).unwrap_err().to_string().contains("which unit?"));
}

#[test]
fn serde_refuses_a_number_without_a_unit() {
    let numbers: [Result<Duration, ValueError>; 3] = [
        serde_text::deserialize(U64Deserializer::new(15)),
        serde_text::deserialize(I64Deserializer::new(15)),
        serde_text::deserialize(F64Deserializer::new(1.5)),
    ];
    for number in numbers {
        assert!(number.unwrap_err().to_string().contains("which unit?"));
    }
    let negative: Result<Duration, ValueError> = serde_text::deserialize(I64Deserializer::new(-15));
    assert!(negative.unwrap_err().to_string().contains("is negative"));
    let unit: Result<Duration, ValueError> = serde_text::deserialize(UnitDeserializer::new());
    assert!(unit.unwrap_err().to_string().contains("a duration in text"));
}
