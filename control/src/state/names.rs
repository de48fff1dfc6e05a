//! Which names are allowed.

use super::Refusal;
use crate::api::LONGEST;
use farmem_protocol::wire::text::is_plain;

/// Whether a text can be printed beside others, has no comma, and is neither empty nor too long.
pub(super) fn is_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && text.chars().all(|c| is_plain(c) && c != ',')
}

/// Whether a text may name a node: an [`is_text`] without spaces.
pub fn is_name(text: &str) -> bool {
    is_text(text) && !text.contains(char::is_whitespace)
}

/// What a name is, for those who gave none.
pub fn rule(what: &str) -> String {
    format!("a {what} is 1 to {LONGEST} characters, without spaces, commas and control characters")
}

/// Refuses a name that is none. `what` names it in the refusal.
pub(super) fn name_is_good(what: &str, text: &str) -> Result<(), Refusal> {
    if is_name(text) { Ok(()) } else { Err(Refusal::Malformed(rule(what))) }
}
