//! `#[handler]`: replaces a function by one with the same name that creates the pipeline, and keeps
//! the plain one as `name::call`.

use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, FnArg, PatType, Result, ReturnType, Safety, Signature, Token, Type, Visibility,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
    parse_quote,
    spanned::Spanned as _,
};

use crate::{all, steps};

/// A function with an unparsed body, so that any body that the compiler accepts is passed on.
struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        Ok(Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
            body: input.parse()?,
        })
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { attributes, visibility, signature, body } = self;
        quote!(#(#attributes)* #visibility #signature #body).to_tokens(tokens);
    }
}

/// Expands the attribute. With an error, the plain function is kept, so that the error causes no
/// others.
pub(crate) fn expand(settings: TokenStream, item: TokenStream) -> TokenStream {
    let mut function = match syn::parse2::<Function>(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let text = format!("`#[handler]` belongs on a function: {error}");
            let error = Error::new(error.span(), text).into_compile_error();
            return quote!(#error #item);
        }
    };
    let (attributes, others): (Vec<_>, Vec<_>) =
        function.attributes.drain(..).partition(|attribute| steps::Kind::of(attribute.path()).is_some());
    function.attributes = others;
    match handler(&settings, &attributes, &function) {
        Ok(handler) => handler,
        Err(error) => {
            let error = error.into_compile_error();
            quote!(#error #function)
        }
    }
}

fn handler(settings: &TokenStream, attributes: &[Attribute], function: &Function) -> Result<TokenStream> {
    if !settings.is_empty() {
        let text = "`#[handler]` has no settings: write its steps below it, such as `#[timeout(\"10s\")]`";
        return Err(Error::new(settings.span(), text));
    }
    match (message_of(&function.signature), steps::read(attributes)) {
        (Ok(message), Ok(steps)) => Ok(generate(function, message, &steps)),
        (Err(mut error), Err(other)) => {
            error.combine(other);
            Err(error)
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Returns the type of the message, or the reasons why the function cannot be a handler.
fn message_of(signature: &Signature) -> Result<&Type> {
    all(problems(signature))?;
    match signature.inputs.first() {
        Some(FnArg::Typed(message)) => Ok(&message.ty),
        _ => {
            let name = &signature.ident;
            let text = format!(
                "the handler `{name}` has no message: its first parameter is the message that it handles, \
                 as in `fn {name}(message: OrderPlaced)`"
            );
            Err(Error::new_spanned(name, text))
        }
    }
}

fn problems(signature: &Signature) -> Vec<Error> {
    let Signature { constness, safety, abi, ident: name, generics, inputs, .. } = signature;
    let mut problems = Vec::new();
    let mut refuse = |what: &dyn ToTokens, problem: String| problems.push(Error::new_spanned(what, problem));
    if let Some(token) = constness {
        refuse(token, format!("the handler `{name}` is `const`, but it runs for each message: remove it"));
    }
    if let Safety::Unsafe(token) = safety {
        refuse(
            token,
            format!("the handler `{name}` is `unsafe`, but Dwell calls it from safe code: remove it"),
        );
    }
    if let Some(abi) = abi {
        refuse(abi, format!("the handler `{name}` is `extern`, but Dwell calls Rust functions: remove it"));
    }
    if !generics.params.is_empty() {
        refuse(
            generics,
            format!(
                "the handler `{name}` is generic, but a handler handles one type of message: name the type"
            ),
        );
    } else if let Some(bounds) = &generics.where_clause {
        refuse(
            bounds,
            format!("the handler `{name}` has a `where` clause, but no generic parameters: remove it"),
        );
    }
    for (n, input) in inputs.iter().enumerate() {
        let FnArg::Typed(PatType { ty, .. }) = input else {
            let text =
                "a handler has no `self`: move it out of the `impl`, and take its dependencies as `State`";
            refuse(input, text.to_owned());
            continue;
        };
        match &**ty {
            Type::ImplTrait(_) => {
                refuse(ty, format!("`impl` makes the handler `{name}` generic: name the type"));
            }
            Type::Reference(_) if n == 0 => {
                refuse(
                    ty,
                    format!(
                        "the handler `{name}` borrows its message, but receives it by value: remove the `&`"
                    ),
                );
            }
            _ => {}
        }
    }
    problems
}

fn generate(function: &Function, message: &Type, steps: &[steps::Step]) -> TokenStream {
    let Function { attributes, visibility, signature, body } = function;
    let name = &signature.ident;
    let shown = name.unraw().to_string();
    let is =
        |attribute: &&Attribute, names: &[&str]| names.iter().any(|name| attribute.path().is_ident(name));

    // `cfg` applies to everything that is generated. Docs belong to the pipeline function, and
    // `allow` to both. All other attributes belong to the plain function.
    let conditions: Vec<_> = attributes.iter().filter(|attribute| is(attribute, &["cfg"])).collect();
    let of_maker = attributes.iter().filter(|attribute| is(attribute, &["cfg", "doc", "allow"]));
    let of_parts = attributes.iter().filter(|attribute| is(attribute, &["cfg", "allow"]));
    let of_function = attributes.iter().filter(|attribute| !is(attribute, &["cfg", "doc"]));

    // Lints about the pipeline function, such as missing docs, are then reported at the source
    // function.
    let fn_token = Token![fn](signature.fn_token.span);
    let mut call = signature.clone();
    call.ident = Ident::new("call", name.span());
    let call_doc = format!("The plain function `{shown}`, without its steps.");
    let call_doc: Attribute = parse_quote!(#[doc = #call_doc]);
    // Errors about extractors and return types are then reported at the function's name.
    let plain = quote_spanned!(name.span()=> #name::call);
    let steps = steps.iter().map(steps::Step::expand);
    let parts = parts(signature);
    // A struct with braces does not occupy its name in the value namespace, so the function can
    // have it and a variable can shadow it.
    quote! {
        #(#of_maker)*
        #visibility #fn_token #name() -> ::dwell::Pipeline<#message> {
            ::dwell::Pipeline::new(#plain).named(#shown) #(.step(#steps))*
        }

        #(#of_parts)*
        #parts

        #(#conditions)*
        #[doc(hidden)]
        #[allow(non_camel_case_types, dead_code, missing_debug_implementations)]
        #visibility struct #name {}

        #(#conditions)*
        impl #name {
            #call_doc
            #(#of_function)*
            #visibility #call #body
        }
    }
}

/// Generates a check of each part of a handler, so that an error is reported at that part.
fn parts(signature: &Signature) -> TokenStream {
    let name = &signature.ident;
    let inputs = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(input) => Some(input),
        FnArg::Receiver(_) => None,
    });
    let inputs: Vec<_> = inputs.collect();
    let types: Vec<_> = inputs.iter().map(|input| &*input.ty).collect();
    // A `cfg` of a parameter applies to all of its checks.
    let conditions: Vec<_> = inputs
        .iter()
        .map(|input| {
            let conditions = input.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"));
            quote!(#(#conditions)*)
        })
        .collect();
    let fits = types.iter().enumerate().map(|(n, ty)| match n {
        0 => quote_spanned!(ty.span()=> ::dwell::parts::message::<#ty>();),
        _ => quote_spanned!(ty.span()=> ::dwell::parts::asked_for::<#ty>();),
    });
    let returned = answer(signature).map(|ty| quote_spanned!(ty.span()=> ::dwell::parts::returned::<#ty>();));
    let names: Vec<_> = (0..types.len()).map(|n| format_ident!("part_{n}")).collect();
    let future = signature
        .asyncness
        .map(|_| quote_spanned!(name.span()=> ::dwell::parts::future(#name::call(#(#conditions #names),*));));
    quote! {
        const _: () = {
            #[allow(dead_code, unused_variables, clippy::too_many_arguments)]
            fn parts(#(#conditions #names: #types),*) {
                #(#conditions #fits)*
                #returned
                #future
            }
        };
    }
}

/// Returns the return type of the handler, if it is known. A function that is not `async` may
/// return a future, unless its return type is a `Result`. An `impl` type cannot be named.
fn answer(signature: &Signature) -> Option<&Type> {
    let ReturnType::Type(_, ty) = &signature.output else { return None };
    let is_result = match &**ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "Result"),
        _ => false,
    };
    let can_tell = signature.asyncness.is_some() || is_result;
    (can_tell && !says_impl(ty.to_token_stream())).then_some(ty)
}

fn says_impl(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(word) => word == "impl",
        TokenTree::Group(group) => says_impl(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

#[cfg(test)]
mod tests;
