//! Which names are allowed.

use super::Refusal;
use crate::api::LONGEST;
use farmem_protocol::wire::text::is_plain;

/// Whether a text can be printed beside others, has no comma, and is neither empty nor too long.
pub(super) fn is_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && text.chars().all(|c| is_plain(c) && c != ',')
}

/// Refuses a name that is no [`is_text`], or has a space. `what` names it in the refusal.
pub(super) fn name_is_good(what: &str, text: &str) -> Result<(), Refusal> {
    if is_text(text) && !text.contains(char::is_whitespace) {
        return Ok(());
    }
    Err(Refusal::Malformed(format!(
        "a {what} is 1 to {LONGEST} characters, without spaces, commas and control characters"
    )))
}
