//! The step attributes, their settings, and their conversion to a `::dwell::Step`.

use proc_macro2::{Literal, Span, TokenStream};
use quote::{format_ident, quote};
use syn::{Attribute, Error, Lit, Path, Result, parse::ParseStream, spanned::Spanned as _};

use crate::{
    all,
    settings::Keys,
    value::{
        self,
        Kind::{Count, Duration, Positive, Rate, Share},
    },
};

/// A step attribute. There is one for each step that `::dwell::Step` creates.
pub(crate) struct Kind {
    name: &'static str,
    needs: Needs,
    /// Whether the first setting may be written without its key.
    unnamed: bool,
    /// Settings in addition to `step`, which all have. Each is a setter with the same name.
    settings: &'static [(&'static str, value::Kind)],
}

/// Required settings.
enum Needs {
    Nothing,
    /// At least one, because the attribute has no effect without a setting.
    Any,
    /// The first one, which the constructor takes.
    First,
}

const KINDS: [Kind; 9] = [
    Kind { name: "defer_on_error", needs: Needs::Nothing, unnamed: true, settings: &[("delay", Duration)] },
    Kind { name: "reject_on_error", needs: Needs::Nothing, unnamed: false, settings: &[] },
    Kind { name: "release_on_error", needs: Needs::Nothing, unnamed: false, settings: &[] },
    Kind {
        name: "retry",
        needs: Needs::Any,
        unnamed: false,
        settings: &[
            ("max_retries", Count(0)),
            ("base_delay", Duration),
            ("max_delay", Duration),
            ("jitter", Share),
        ],
    },
    Kind {
        name: "retry_inline",
        needs: Needs::Nothing,
        unnamed: false,
        settings: &[("max_retries", Count(0)), ("base_delay", Duration), ("max_delay", Duration)],
    },
    Kind { name: "timeout", needs: Needs::First, unnamed: true, settings: &[("after", Positive)] },
    Kind {
        name: "circuit_breaker",
        needs: Needs::Nothing,
        unnamed: false,
        settings: &[("failures", Count(1)), ("open_for", Positive)],
    },
    Kind {
        name: "rate_limit",
        needs: Needs::First,
        unnamed: false,
        settings: &[("per_second", Rate), ("burst", Count(1))],
    },
    Kind { name: "inbox", needs: Needs::Nothing, unnamed: false, settings: &[("keep", Positive)] },
];

impl Kind {
    /// Returns the step for an attribute path, written `timeout` or `dwell::timeout`.
    pub(crate) fn of(path: &Path) -> Option<&'static Self> {
        let name = match path.segments.len() {
            1 => path.get_ident()?,
            2 if path.segments[0].ident == "dwell" => &path.segments[1].ident,
            _ => return None,
        };
        KINDS.iter().find(|kind| name == kind.name)
    }

    /// Parses the settings of an attribute.
    pub(crate) fn read(&'static self, attribute: &Attribute) -> Result<Step> {
        let known: Vec<_> = self.settings.iter().map(|(name, _)| *name).chain(["step"]).collect();
        let unnamed = self.settings.first().map(|(name, _)| *name).filter(|_| self.unnamed);
        let keys = Keys { attribute: self.name, known: &known, unnamed };
        let mut step = Step { kind: self, span: attribute.path().span(), number: None, values: Vec::new() };
        keys.read(attribute, &mut Vec::new(), |key, input| {
            match self.settings.iter().find(|(name, _)| key == name) {
                Some((name, kind)) => step.values.push((name, kind.read(name, input)?)),
                None => step.number = Some(Number::read(input)?),
            }
            Ok(())
        })?;
        step.check()?;
        Ok(step)
    }
}

/// A step attribute of a handler.
pub(crate) struct Step {
    kind: &'static Kind,
    span: Span,
    number: Option<Number>,
    /// In the order of the source.
    values: Vec<(&'static str, value::Value)>,
}

/// The setting `step = n`.
struct Number {
    number: i32,
    span: Span,
}

impl Number {
    fn read(input: ParseStream<'_>) -> Result<Self> {
        let wrong = |span| {
            let text = "`step` takes a whole number, such as `1`: the step with the lowest is the outermost";
            Error::new(span, text)
        };
        let written = input.parse::<Lit>().map_err(|error| wrong(error.span()))?;
        let number = match &written {
            Lit::Int(number) => number.base10_parse().ok(),
            _ => None,
        };
        let span = written.span();
        number.map(|number| Self { number, span }).ok_or_else(|| wrong(span))
    }
}

impl Step {
    fn value(&self, name: &str) -> Option<&value::Value> {
        self.values.iter().find(|(set, _)| *set == name).map(|(_, value)| value)
    }

    fn check(&self) -> Result<()> {
        let Kind { name, needs, unnamed, settings } = self.kind;
        let missing = match needs {
            Needs::Nothing => None,
            Needs::Any => self.values.is_empty().then(|| {
                let all: Vec<_> = settings.iter().map(|(setting, _)| format!("`{setting}`")).collect();
                format!("`#[{name}]` has no settings: set at least one of {}", all.join(", "))
            }),
            Needs::First => {
                let first = settings[0].0;
                let example = match unnamed {
                    true => format!("`#[{name}(\"10s\")]`"),
                    false => format!("`#[{name}({first} = 10)]`"),
                };
                self.value(first)
                    .is_none()
                    .then(|| format!("`#[{name}]` needs `{first}`: write it like {example}"))
            }
        };
        if let Some(missing) = missing {
            return Err(Error::new(self.span, missing));
        }
        if let (Some(base), Some(max)) = (self.value("base_delay"), self.value("max_delay"))
            && max.duration < base.duration
        {
            let (base, written) = (text(&base.written), text(&max.written));
            let problem = format!(
                "`max_delay = {written}` is below `base_delay = {base}`, the delay before the first retry: \
                 increase one or decrease the other"
            );
            return Err(Error::new(max.written.span(), problem));
        }
        Ok(())
    }

    /// Returns the expression that creates the step.
    pub(crate) fn expand(&self) -> TokenStream {
        let Kind { name, needs, settings, .. } = self.kind;
        let name = format_ident!("{name}");
        let (arguments, setters): (Vec<_>, Vec<_>) = self
            .values
            .iter()
            .partition(|(setting, _)| matches!(needs, Needs::First) && *setting == settings[0].0);
        let arguments = arguments.iter().map(|(_, value)| &value.tokens);
        let setters = setters.iter().map(|(setting, value)| {
            let (setter, value) = (format_ident!("{setting}"), &value.tokens);
            quote!(.#setter(#value))
        });
        let number = self.number.as_ref().map(|Number { number, .. }| {
            let number = Literal::i32_unsuffixed(*number);
            quote!(.number(#number))
        });
        quote!(::dwell::Step::#name(#(#arguments)*) #(#setters)* #number)
    }
}

fn text(written: &Lit) -> String {
    quote!(#written).to_string()
}

/// Parses the steps of a handler, in the order of the source.
pub(crate) fn read(attributes: &[Attribute]) -> Result<Vec<Step>> {
    let (mut steps, mut problems) = (Vec::new(), Vec::new());
    for attribute in attributes {
        match Kind::of(attribute.path()).map(|kind| kind.read(attribute)) {
            Some(Ok(step)) => steps.push(step),
            Some(Err(error)) => problems.push(error),
            None => {}
        }
    }
    problems.extend(repeated(&steps));
    problems.extend(not_numbered(&steps));
    all(problems)?;
    Ok(steps)
}

/// Returns errors for repeated steps and repeated numbers.
fn repeated(steps: &[Step]) -> Vec<Error> {
    let mut problems = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        let before = &steps[..n];
        let name = step.kind.name;
        if before.iter().any(|other| other.kind.name == name) {
            let text = format!("`#[{name}]` appears twice: use each step at most once");
            problems.push(Error::new(step.span, text));
        }
        let Some(Number { number, span }) = &step.number else { continue };
        let same = |other: &&Step| other.number.as_ref().is_some_and(|other| other.number == *number);
        if let Some(other) = before.iter().find(same) {
            let other = other.kind.name;
            let text = format!(
                "`step = {number}` is also the number of `#[{other}]`: give each step a different number"
            );
            problems.push(Error::new(*span, text));
        }
    }
    problems
}

/// Returns errors for steps without a number if other steps have one, because their position is
/// unknown.
fn not_numbered(steps: &[Step]) -> Vec<Error> {
    let Some(numbered) = steps.iter().find(|step| step.number.is_some()) else { return Vec::new() };
    let without = steps.iter().filter(|step| step.number.is_none());
    let problem = |step: &Step| {
        let text = format!(
            "`#[{}]` has no `step = n`, but `#[{}]` has one: number all the steps of a handler, or none",
            step.kind.name, numbered.kind.name
        );
        Error::new(step.span, text)
    };
    without.map(problem).collect()
}

/// Returns the error for a step attribute without a `#[handler]` above it.
pub(crate) fn misplaced(name: &str) -> Error {
    let text = format!("`#[{name}]` is a step of a handler: write `#[handler]` above it");
    Error::new(Span::call_site(), text)
}

#[cfg(test)]
mod tests;
