//! Values of settings. They are checked at compile time, so they have to be literals.

use std::time::Duration;

use proc_macro2::{Literal, TokenStream};
use quote::quote;
use syn::{Error, Lit, parse::ParseStream};

/// Kind of a value.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A duration, zero included.
    Duration,
    /// A duration above zero.
    Positive,
    /// A whole number, with its minimum.
    Count(u32),
    /// A number from 0 to 1.
    Share,
    /// A number above 0.
    Rate,
}

/// A value: the literal, and the generated code.
pub(crate) struct Value {
    pub(crate) written: Lit,
    pub(crate) tokens: TokenStream,
    /// The duration, if it is one, for comparisons.
    pub(crate) duration: Option<Duration>,
}

impl Kind {
    /// Parses the value of the setting `key`.
    pub(crate) fn read(self, key: &str, input: ParseStream<'_>) -> syn::Result<Value> {
        let wanted = self.wanted(key);
        let written = input
            .parse::<Lit>()
            .map_err(|error| Error::new(error.span(), format!("{wanted}, as a literal")))?;
        let wrong = |problem: String| Error::new(written.span(), problem);
        let not_wanted = || wrong(wanted.clone());
        let (tokens, duration) = match self {
            Kind::Duration | Kind::Positive => {
                let duration =
                    duration(key, &written).map_err(|problem| wrong(format!("{problem}\n{wanted}")))?;
                if matches!(self, Kind::Positive) && duration.is_zero() {
                    return Err(wrong(format!("a duration of zero is not allowed here\n{wanted}")));
                }
                // The parser returns whole milliseconds that fit.
                let millis = Literal::u64_unsuffixed(duration.as_millis() as u64);
                (quote!(::core::time::Duration::from_millis(#millis)), Some(duration))
            }
            Kind::Count(least) => {
                let Lit::Int(number) = &written else { return Err(not_wanted()) };
                let count = number.base10_parse::<u32>().ok().filter(|count| *count >= least);
                let count = Literal::u32_unsuffixed(count.ok_or_else(not_wanted)?);
                (quote!(#count), None)
            }
            Kind::Share | Kind::Rate => {
                let number = match &written {
                    Lit::Int(number) => number.base10_parse::<f64>(),
                    Lit::Float(number) => number.base10_parse::<f64>(),
                    _ => return Err(not_wanted()),
                };
                let fits = |number: &f64| match self {
                    Kind::Share => (0.0..=1.0).contains(number),
                    _ => *number > 0.0 && number.is_finite(),
                };
                let number = Literal::f64_unsuffixed(number.ok().filter(fits).ok_or_else(not_wanted)?);
                (quote!(#number), None)
            }
        };
        Ok(Value { written, tokens, duration })
    }

    /// Describes the expected value, for errors.
    fn wanted(self, key: &str) -> String {
        match self {
            Kind::Duration => {
                format!("`{key}` takes a duration in quotes: `250ms` `90s` `15m` `1h30m` `5d` `2w`")
            }
            Kind::Positive => {
                format!(
                    "`{key}` takes a duration above zero in quotes: `250ms` `90s` `15m` `1h30m` `5d` `2w`"
                )
            }
            Kind::Count(least) => format!("`{key}` takes a whole number from {least} to {}", u32::MAX),
            Kind::Share => format!("`{key}` takes a number from 0 to 1, such as `0.15`"),
            Kind::Rate => format!("`{key}` takes a number above 0, such as `10` or `0.5`"),
        }
    }
}

fn duration(key: &str, written: &Lit) -> Result<Duration, String> {
    let (text, suffix) = match written {
        Lit::Str(text) => (text.value(), ""),
        // Rust parses `30s` as a number with the suffix `s`.
        Lit::Int(number) => (number.to_string(), number.suffix()),
        Lit::Float(number) => (number.to_string(), number.suffix()),
        _ => return Err(format!("`{key}` is not a duration")),
    };
    if !suffix.is_empty() && dwell_core::parse_duration(&text).is_ok() {
        return Err(format!("`{text}` has no quotes: write `{key} = \"{text}\"`"));
    }
    dwell_core::parse_duration(&text).map_err(|error| error.to_string())
}
