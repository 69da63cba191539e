//! Options of a transport URL.

use super::{TransportUrl, is_secret};
use crate::{Error, ErrorKind, Result, Secret, duration::parse_duration, quote::quote, suggest};
use std::{
    num::{IntErrorKind, ParseIntError},
    str::FromStr,
    time::Duration,
};

/// Reader for the options of a [`TransportUrl`]. A transport reads each option that it supports, by
/// name and type. It then calls [`finish`](Self::finish), which refuses all other options.
///
/// All errors have the kind `Config`. They name the option, what is accepted, and the given value
/// unless it may be secret.
///
/// ```
/// use dwell_core::TransportUrl;
///
/// let url = TransportUrl::parse("memory://?capasity=1000")?;
/// let mut options = url.options();
/// let capacity: Option<usize> = options.number("capacity")?;
/// let lease = options.duration("lease")?;
/// assert_eq!(
///     options.finish().unwrap_err().to_string(),
///     "unknown option `capasity` for memory://; did you mean `capacity`? known options: capacity, lease",
/// );
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "`finish` refuses unknown options"]
pub struct Options<'a> {
    url: &'a TransportUrl,
    known: Vec<&'static str>,
}

impl<'a> Options<'a> {
    pub(super) fn new(url: &'a TransportUrl) -> Self {
        Self { url, known: Vec::new() }
    }

    /// Reads a text, which must not be empty.
    pub fn text(&mut self, name: &'static str) -> Result<Option<&'a str>> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        let value = self.url.options.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str());
        match value {
            Some("") => Err(self.refused(name, "", "it must not be empty; leave it out, or give it a value")),
            value => Ok(value),
        }
    }

    /// Reads a text that must not be printed. The name of the option must contain a word such as
    /// `password`, `token` or `key`. Only then is the value hidden when the whole URL is printed.
    pub fn secret(&mut self, name: &'static str) -> Result<Option<Secret>> {
        debug_assert!(
            is_secret(name),
            "the option `{name}` would be printed: use a name that marks it as secret"
        );
        Ok(self.text(name)?.map(Secret::new))
    }

    /// Reads a whole number that fits the type.
    pub fn number<T: FromStr<Err = ParseIntError>>(&mut self, name: &'static str) -> Result<Option<T>> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        value.parse().map(Some).map_err(|error: ParseIntError| {
            let wanted = match error.kind() {
                IntErrorKind::PosOverflow => "it is too large; give a smaller number",
                IntErrorKind::NegOverflow => "it is too small; give a larger number",
                IntErrorKind::Zero => "it must not be zero",
                _ => "it must be a whole number without a unit, such as `100`",
            };
            self.refused(name, value, wanted)
        })
    }

    /// Reads a duration such as `15m`; see [`parse_duration`].
    pub fn duration(&mut self, name: &'static str) -> Result<Option<Duration>> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        parse_duration(value).map(Some).map_err(|error| {
            let wanted = if is_secret(name) {
                "it must be a duration, such as `90s` or `1h30m`".to_owned()
            } else {
                error.to_string()
            };
            self.refused(name, value, &wanted)
        })
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>> {
        Ok(self.one_of(name, &["true", "false"])?.map(|value| value == "true"))
    }

    /// Reads one of these words.
    pub fn one_of<'b>(&mut self, name: &'static str, words: &[&'b str]) -> Result<Option<&'b str>> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        if let Some(word) = words.iter().copied().find(|word| *word == value) {
            return Ok(Some(word));
        }
        let meant = match suggest(value, words.iter().copied()) {
            Some(word) if !is_secret(name) => format!("; did you mean `{word}`?"),
            _ => String::new(),
        };
        let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
        Err(self.refused(name, value, &format!("it must be {}{meant}", words.join(" or "))))
    }

    /// Refuses the options that were not read.
    pub fn finish(self) -> Result<()> {
        let Some((stray, _)) =
            self.url.options.iter().find(|(given, _)| !self.known.contains(&given.as_str()))
        else {
            return Ok(());
        };
        let meant = match suggest(stray, self.known.iter().copied()) {
            Some(name) => format!("did you mean `{name}`? "),
            None => String::new(),
        };
        let known = if self.known.is_empty() {
            "it takes no options".to_owned()
        } else {
            format!("known options: {}", self.known.join(", "))
        };
        Err(Error::new(
            ErrorKind::Config,
            format!("unknown option {} for {}://; {meant}{known}", quote(stray), self.url.scheme),
        ))
    }

    fn refused(&self, name: &str, value: &str, wanted: &str) -> Error {
        let value = if is_secret(name) { Secret::MASK.to_owned() } else { quote(value) };
        Error::new(
            ErrorKind::Config,
            format!("the option `{name}` of {}:// is {value}: {wanted}", self.url.scheme),
        )
    }
}
