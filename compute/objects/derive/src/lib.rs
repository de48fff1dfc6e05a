//! `#[derive(Linked)]`: which fields of an object in an arena are links.
//!
//! A link is a `Gc<…>`: it keeps its object alive only if `Linked` names it. A programmer who
//! writes `Linked` by hand may forget one. So the derive must understand each field: a link, a
//! number, or an array of either. A field of any other type needs `#[plain]`: it has no links. The
//! derive refuses `#[plain]` on a type that visibly names a link. A link with `#[weak]` does not
//! keep its object alive.

use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Data, DeriveInput, Error, Field, Fields, GenericArgument, PathArguments, Result, Type, parse_macro_input};

/// Types that have no link in them.
const NUMBERS: [&str; 15] = [
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "usize",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "isize",
    "f32",
    "f64",
    "PhantomData",
];

/// Implements `farmem_objects::Linked` for a struct.
#[proc_macro_derive(Linked, attributes(plain, weak))]
pub fn linked(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implemented(&input).unwrap_or_else(|e| e.into_compile_error()).into()
}

/// The kinds of fields.
enum Kind {
    Plain,
    /// A link of this type.
    Link(Box<Type>),
    /// Links of this type, side by side.
    Links(Box<Type>),
}

fn implemented(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "an object with links is a struct"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(&input.generics, "an object with links has no parameters: write `impl Linked`"));
    }
    let fields = match &data.fields {
        Fields::Named(fields) => fields.named.iter().collect::<Vec<_>>(),
        Fields::Unnamed(fields) => fields.unnamed.iter().collect(),
        Fields::Unit => Vec::new(),
    };
    let (name, mut runs) = (&input.ident, Vec::new());
    for (number, field) in fields.into_iter().enumerate() {
        let link = match kind(field)? {
            Kind::Plain => continue,
            Kind::Link(link) | Kind::Links(link) => link,
        };
        let number = syn::Index::from(number);
        let place = field.ident.as_ref().map_or_else(|| quote!(#number), |name| quote!(#name));
        let (link, whole) = (of(quote!(#link), name), of(field.ty.to_token_stream(), name));
        runs.push(quote! {{
            // A link to an object of another type is refused here.
            const _: fn(#link) -> ::farmem_objects::Gc<#name> = |link| link;
            (::core::mem::offset_of!(#name, #place), ::core::mem::size_of::<#whole>() / 8)
        }});
    }
    Ok(quote! {
        impl ::farmem_objects::Linked for #name {
            const LINKS: &'static [usize] = {
                const RUNS: &[(usize, usize)] = &[#(#runs),*];
                &::farmem_objects::links_of::<{ ::farmem_objects::count_of(RUNS) }>(RUNS)
            };
        }
    })
}

/// A type with the struct's name in place of `Self`, which constants cannot say.
fn of(tokens: TokenStream, name: &Ident) -> TokenStream {
    let one = |token| match token {
        TokenTree::Ident(ident) if ident == "Self" => TokenTree::Ident(name.clone()),
        TokenTree::Group(group) => {
            let mut inner = Group::new(group.delimiter(), of(group.stream(), name));
            inner.set_span(group.span());
            TokenTree::Group(inner)
        }
        token => token,
    };
    tokens.into_iter().map(one).collect()
}

fn kind(field: &Field) -> Result<Kind> {
    let is_said = |name: &str| field.attrs.iter().any(|attribute| attribute.path().is_ident(name));
    if is_said("weak") {
        return Ok(Kind::Plain);
    }
    if is_said("plain") {
        return if has_link(&field.ty) {
            Err(Error::new_spanned(
                &field.ty,
                "a field with links is not plain: say #[weak], if they keep nothing alive",
            ))
        } else {
            Ok(Kind::Plain)
        };
    }
    let (mut inner, mut is_array) = (&field.ty, false);
    while let Type::Array(array) = inner {
        (inner, is_array) = (&array.elem, true);
    }
    match named(inner).as_deref() {
        Some("Gc") if is_array => Ok(Kind::Links(inner.clone().into())),
        Some("Gc") => Ok(Kind::Link(inner.clone().into())),
        Some(name) if NUMBERS.contains(&name) => Ok(Kind::Plain),
        _ => Err(Error::new_spanned(
            inner,
            "fields are links (Gc), numbers, or arrays of these: say #[plain] of a type that has no links",
        )),
    }
}

/// The last name of a type's path.
fn named(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

/// Whether a type names a link, itself or in a parameter.
fn has_link(of: &Type) -> bool {
    match of {
        Type::Array(array) => has_link(&array.elem),
        Type::Tuple(tuple) => tuple.elems.iter().any(has_link),
        Type::Path(path) => path.path.segments.iter().any(|segment| {
            let within = match &segment.arguments {
                PathArguments::AngleBracketed(arguments) => arguments.args.iter().any(|argument| match argument {
                    GenericArgument::Type(of) => has_link(of),
                    _ => false,
                }),
                _ => false,
            };
            segment.ident == "Gc" || within
        }),
        _ => false,
    }
}
