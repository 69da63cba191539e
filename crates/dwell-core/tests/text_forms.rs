//! Property tests of the text parsers. They never panic, they read back what was written, and they
//! print no secret.

use dwell_core::{
    Timestamp, TransportUrl, check_id, check_subscription, check_topic, check_user_topic, format_duration,
    parse_duration, suggest,
};
use std::time::Duration;

/// SplitMix64: returns the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    /// Returns a number of a random magnitude, so that small numbers occur too.
    fn of_any_size(&mut self) -> u64 {
        let shift = self.below(64);
        self.next() >> shift
    }

    fn bytes(&mut self) -> String {
        let length = self.below(40);
        let bytes: Vec<u8> = (0..length).map(|_| self.next().to_le_bytes()[0]).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns up to twelve of the pieces, in any order.
    fn pieces(&mut self, pieces: &[&str]) -> String {
        let length = self.below(12);
        (0..length).map(|_| pieces[self.below(pieces.len())]).collect()
    }
}

const PIECES: [&str; 56] = [
    "0",
    "1",
    "9",
    "15",
    "60",
    "99999999999999999999",
    ".",
    ",",
    "-",
    "+",
    " ",
    "w",
    "d",
    "h",
    "m",
    "s",
    "ms",
    "min",
    "P",
    "PT",
    "T",
    "t",
    "W",
    "D",
    "H",
    "M",
    "S",
    "Y",
    "2026",
    "2026-11-15",
    "10:00:00",
    "23:59:60",
    "02-29",
    ":",
    "Z",
    "z",
    "+02:00",
    ".9999",
    "redis",
    "sqlite",
    "://",
    "/",
    "?",
    "&",
    "=",
    "@",
    "#",
    "%",
    "%2F",
    "%FF",
    "[",
    "]",
    "::1",
    "host",
    "é",
    "\0",
];

fn read_all(text: &str) {
    if let Ok(duration) = parse_duration(text) {
        assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration, "{text:?}");
    }
    if let Ok(time) = Timestamp::parse(text) {
        assert_eq!(Timestamp::parse(&time.to_rfc3339()).unwrap(), time, "{text:?}");
    }
    if let Ok(url) = TransportUrl::parse(text) {
        let mut options = url.options();
        let _ = (options.text("a"), options.number::<u8>("b"), options.duration("c"), options.flag("d"));
        let _ = options.finish();
        let shown = url.to_string();
        let again = TransportUrl::parse(&shown).unwrap_or_else(|error| panic!("{text:?} {shown}: {error}"));
        assert_eq!(again.to_string(), shown, "{text:?}");
        assert_eq!((again.path(), again.hosts()), (url.path(), url.hosts()), "{text:?}");
    }
    let _ = (check_topic(text), check_user_topic(text), check_subscription(text), check_id(text));
    let _ = suggest(text, ["capacity", "lease", ""]);
}

#[test]
fn parsers_survive_random_bytes() {
    let mut numbers = Numbers(1);
    for _ in 0..20_000 {
        read_all(&numbers.bytes());
    }
}

#[test]
fn parsers_survive_random_pieces_of_valid_text() {
    let mut numbers = Numbers(2);
    for _ in 0..5_000 {
        read_all(&numbers.pieces(&PIECES));
        let rest = numbers.pieces(&PIECES);
        read_all(&format!("kafka://{rest}"));
        read_all(&format!("sqlite://{rest}"));
        read_all(&format!("2026-11-15T10:00:00{rest}"));
        read_all(&format!("PT{rest}"));
    }
}

#[test]
fn every_duration_is_read_back_rounded_up() {
    let mut numbers = Numbers(3);
    for _ in 0..20_000 {
        let whole = Duration::from_millis(numbers.of_any_size());
        assert_eq!(parse_duration(&format_duration(whole)).unwrap(), whole);

        let fine = Duration::from_nanos(numbers.of_any_size());
        let read = parse_duration(&format_duration(fine)).unwrap();
        assert!(read >= fine && read - fine < Duration::from_millis(1), "{fine:?} became {read:?}");
    }
}

#[test]
fn every_time_from_year_0_to_9999_is_read_back() {
    const FIRST: i64 = -62_167_219_200_000;
    const LENGTH: u64 = 315_569_520_000_000;
    let mut numbers = Numbers(4);
    for _ in 0..20_000 {
        let time = Timestamp(FIRST + i64::try_from(numbers.next() % LENGTH).unwrap());
        let text = time.to_rfc3339();
        assert_eq!(text.len(), "2026-11-15T10:00:00.000Z".len());
        assert_eq!(Timestamp::parse(&text).unwrap(), time, "{text}");
    }
}

#[test]
fn distant_times_have_the_sign_of_their_year() {
    let mut numbers = Numbers(5);
    for _ in 0..20_000 {
        let far = 300_000_000_000_000 + numbers.of_any_size() / 4;
        for (sign, millis) in [('+', far.cast_signed()), ('-', -far.cast_signed())] {
            let text = Timestamp(millis).to_rfc3339();
            assert!(text.starts_with(sign) && text.ends_with('Z'), "{millis} became {text}");
        }
    }
}

#[test]
fn no_password_is_ever_printed() {
    const JUNK: [&str; 20] = [
        "/", "?", "#", "@", ":", ",", "%", "%40", "[", "]", "=", " ", "\n", "é", "1", "a", "://", ".",
        "password", "&",
    ];
    let mut numbers = Numbers(6);
    for _ in 0..20_000 {
        let (before, after) = (numbers.pieces(&JUNK), numbers.pieces(&JUNK));
        // A raw `&` ends the option and starts another one.
        let before_option = before.replace('&', "");
        for text in [
            format!("redis://user:{before}hunter2{after}@host:6379/0?lease=5s"),
            format!("kafka://{before}:hunter2{after}@h1:9092,h2:9092"),
            format!("redis://host/0?sasl_password={before_option}hunter2{after}&lease=5s"),
            format!("user:x{before}hunter2{after}@host"),
        ] {
            let printed = match TransportUrl::parse(&text) {
                Err(error) => format!("{error} {error:?}"),
                Ok(url) => {
                    let mut options = url.options();
                    let number = options.number::<u64>("sasl_password");
                    let unread = format!("{options:?} {:?}", url.options().finish());
                    format!("{url} {url:?} {number:?} {unread} {:?}", options.finish())
                }
            };
            assert!(!printed.contains("hunter2"), "{text:?} printed {printed}");
        }
    }
}
