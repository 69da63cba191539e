//! Parsing of the settings in parentheses: `key = value`, each key at most once, and only known
//! keys.

use std::fmt::Write as _;

use proc_macro2::Ident;
use syn::{
    Attribute, Error, Lit, Meta, Result, Token, ext::IdentExt as _, parse::ParseStream, spanned::Spanned as _,
};

/// The settings of an attribute.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// Name of the attribute, for errors.
    pub(crate) attribute: &'a str,
    pub(crate) known: &'a [&'a str],
    /// Setting whose value may come first without a key: `#[timeout("10s")]`.
    pub(crate) unnamed: Option<&'a str>,
}

impl Keys<'_> {
    /// Parses the settings of one attribute. `set` is called with each key and parses the value.
    /// `seen` collects the keys, so that several attributes with one name can share it.
    pub(crate) fn read(
        &self,
        attribute: &Attribute,
        seen: &mut Vec<Ident>,
        mut set: impl FnMut(&Ident, ParseStream<'_>) -> Result<()>,
    ) -> Result<()> {
        match &attribute.meta {
            Meta::Path(_) => Ok(()),
            Meta::List(list) => {
                list.parse_args_with(|input: ParseStream<'_>| self.read_all(input, seen, &mut set))
            }
            Meta::NameValue(pair) => Err(Error::new(
                pair.eq_token.span(),
                format!("the settings of `#[{0}]` belong in parentheses: `#[{0}(…)]`", self.attribute),
            )),
        }
    }

    fn read_all(
        &self,
        input: ParseStream<'_>,
        seen: &mut Vec<Ident>,
        set: &mut impl FnMut(&Ident, ParseStream<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut first = true;
        while !input.is_empty() {
            let key = match self.unnamed {
                Some(unnamed) if first && input.peek(Lit) => Ident::new(unnamed, input.span()),
                _ => self.key(input)?,
            };
            if seen.contains(&key) {
                let text = format!("`{key}` of `#[{}]` is set twice: remove one of them", self.attribute);
                return Err(Error::new(key.span(), text));
            }
            set(&key, input)?;
            seen.push(key);
            first = false;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(())
    }

    /// Parses `key =`.
    fn key(&self, input: ParseStream<'_>) -> Result<Ident> {
        if !input.peek(Ident::peek_any) {
            let text =
                format!("the settings of `#[{}]` are written `name = value`{}", self.attribute, self.list());
            return Err(input.error(text));
        }
        let key = input.call(Ident::parse_any)?;
        let name = key.to_string();
        if !self.known.contains(&name.as_str()) {
            return Err(Error::new(key.span(), self.unknown(&name)));
        }
        if !input.peek(Token![=]) {
            let text = format!("`{key}` of `#[{}]` has no value: write `{key} = …`", self.attribute);
            return Err(Error::new(key.span(), text));
        }
        input.parse::<Token![=]>()?;
        Ok(key)
    }

    fn unknown(&self, name: &str) -> String {
        let mut text = format!("`#[{}]` has no setting `{name}`", self.attribute);
        // Writing to a string cannot fail.
        if let Some(meant) = dwell_core::suggest(name, self.known.iter().copied()) {
            let _ = write!(text, ": did you mean `{meant}`?");
        }
        text + &self.list()
    }

    fn list(&self) -> String {
        let known: Vec<_> = self.known.iter().map(|known| format!("`{known}`")).collect();
        format!("\nits settings: {}", known.join(", "))
    }
}
