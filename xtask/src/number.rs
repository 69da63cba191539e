//! Numbers for people.

use std::time::Duration;

/// Formats a number with thousands separators and the decimals that are significant at its size.
pub(crate) fn grouped(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string();
    }
    let size = number.abs();
    let decimals = if number.fract() == 0.0 || size >= 1000.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 0.1 {
        2
    } else {
        4
    };
    let plain = format!("{number:.decimals$}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(w, f)| (w, Some(f)));

    let mut text = String::from(sign);
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// Seconds with one decimal.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated_and_small_numbers_keep_their_decimals() {
        for (number, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (999.0, "999"),
            (1000.0, "1,000"),
            (12_345_678.9, "12,345,679"),
            (-1234.0, "-1,234"),
            (123.456, "123.5"),
            (1.2345, "1.23"),
            (0.01234, "0.0123"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
