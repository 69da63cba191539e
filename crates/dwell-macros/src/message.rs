//! `#[derive(Command)]` and `#[derive(Event)]`: the name of a type on the wire, and its topic.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Data, DeriveInput, Error, LitStr, Result, Type, ext::IdentExt as _, parse::ParseStream,
    spanned::Spanned as _,
};

use crate::settings::Keys;

const KEYS: Keys<'_> = Keys { attribute: "message", known: &["name", "topic", "codec"], unnamed: None };

/// The trait to derive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Command,
    Event,
}

/// Expands a derive. `package` is the name of the type's package, if known.
pub(crate) fn expand(kind: Kind, input: &DeriveInput, package: Option<&str>) -> Result<TokenStream> {
    let ident = &input.ident;
    check_shape(input)?;

    let (mut name, mut topic, mut codec) = (None, None, None);
    let mut seen = Vec::new();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident(KEYS.attribute)) {
        KEYS.read(attribute, &mut seen, |key, input| {
            match key.to_string().as_str() {
                "name" => name = Some(wire_name(key, input)?),
                "topic" => topic = Some(wire_name(key, input)?),
                _ => codec = Some(input.parse::<Type>()?),
            }
            Ok(())
        })?;
    }

    let name = match name {
        Some(name) => name,
        None => default_name(ident, package)?,
    };
    let topic = topic.map(|topic| quote!(const TOPIC: &'static str = #topic;));
    let codec = codec.map_or_else(|| quote!(::dwell::Json), |codec| quote!(#codec));
    let kind = format_ident!("{kind:?}");
    Ok(quote! {
        #[automatically_derived]
        impl ::dwell::Message for #ident {
            const NAME: &'static str = #name;
            #topic
            type Codec = #codec;
        }

        #[automatically_derived]
        impl ::dwell::#kind for #ident {}
    })
}

fn check_shape(input: &DeriveInput) -> Result<()> {
    let ident = &input.ident;
    if let Data::Union(data) = &input.data {
        let text =
            format!("`{ident}` is a union, which cannot be deserialised: a message is a struct or an enum");
        return Err(Error::new(data.union_token.span(), text));
    }
    if !input.generics.params.is_empty() {
        let text =
            format!("`{ident}` is generic, but a message is one type with one name: remove the parameters");
        return Err(Error::new_spanned(&input.generics, text));
    }
    Ok(())
}

/// Parses the value of `name` or `topic`.
fn wire_name(key: &Ident, input: ParseStream<'_>) -> Result<LitStr> {
    let wanted = format!("`{key}` takes a text, such as `{key} = \"payments.charge\"`");
    let text = input.parse::<LitStr>().map_err(|error| Error::new(error.span(), wanted))?;
    match dwell_core::check_user_topic(&text.value()) {
        Ok(()) => Ok(text),
        Err(error) if key == "topic" => Err(Error::new(text.span(), error)),
        Err(error) => Err(Error::new(
            text.span(),
            format!("the name of a message has to be valid for a topic: {error}"),
        )),
    }
}

/// Returns `{package}.{type}`. Modules are not part of it, so that a type can move to another file.
fn default_name(ident: &Ident, package: Option<&str>) -> Result<LitStr> {
    let wrong = |problem: String| {
        Error::new(ident.span(), format!("{problem}\ngive `{ident}` a name: `#[message(name = \"…\")]`"))
    };
    let package = package.ok_or_else(|| {
        wrong(
            "the default name of a message starts with the package's, but CARGO_PKG_NAME is not set"
                .to_owned(),
        )
    })?;
    let mut name: String = package
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' })
        .collect();
    // In a package with the name `dwell` or `job`, all names would be reserved.
    if dwell_core::check_user_topic(&format!("{name}.x")).is_err() {
        name.push('_');
    }
    name.push('.');
    name.push_str(&snake_case(&ident.unraw().to_string()));
    dwell_core::check_user_topic(&name)
        .map_err(|error| wrong(format!("the default name is invalid: {error}")))?;
    Ok(LitStr::new(&name, ident.span()))
}

/// Converts `OrderPlaced` to `order_placed`, `HTTPError` to `http_error` and `OrderV2` to
/// `order_v2`.
fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (n, letter) in letters.iter().enumerate() {
        let before = n.checked_sub(1).map(|n| letters[n]);
        let starts_a_word = letter.is_uppercase()
            && before.is_some_and(|before| {
                let ends_capitals = letters.get(n + 1).is_some_and(|after| after.is_lowercase());
                before.is_lowercase() || before.is_numeric() || before.is_uppercase() && ends_capitals
            });
        if starts_a_word {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests;
