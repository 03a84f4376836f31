//! Structured field values (RFC 9651) as we write and read them.
//!
//! Text goes out as a String, or as a Display String where it is not ASCII. A Token is taken as
//! text too, because people write headers by hand.

use http::HeaderValue;
use sfv::{BareItem, Item, ItemSerializer, List, ListEntry, ListSerializer, Parser, StringRef};

/// Reads one text value; `None` when it is malformed.
pub fn text(value: &[u8]) -> Option<String> {
    if let [b'"', inner @ .., b'"'] = value
        && inner.iter().all(|byte| is_plain(*byte))
    {
        return std::str::from_utf8(inner).ok().map(str::to_owned);
    }
    let item: Item = Parser::new(value).parse().ok()?;
    as_text(item.bare_item)
}

/// Printable ASCII that stands for itself inside a String: no quote, no backslash.
fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e) && byte != b'"' && byte != b'\\'
}

fn as_text(item: BareItem) -> Option<String> {
    match item {
        BareItem::String(text) => Some(text.into()),
        BareItem::Token(token) => Some(token.into()),
        BareItem::DisplayString(text) => Some(text),
        _ => None,
    }
}

/// Reads a list of texts; `None` when it is malformed.
pub fn list_of_text(value: &[u8]) -> Option<Vec<String>> {
    let list: List = Parser::new(value).parse().ok()?;
    list.into_iter()
        .map(|entry| match entry {
            ListEntry::Item(item) => as_text(item.bare_item),
            ListEntry::InnerList(_) => None,
        })
        .collect()
}

/// Reads `?1` or `?0`; `None` when it is malformed.
pub fn boolean(value: &[u8]) -> Option<bool> {
    match value {
        b"?1" => Some(true),
        b"?0" => Some(false),
        _ => None,
    }
}

/// Writes one text value.
pub fn write_text(text: &str) -> Option<HeaderValue> {
    let item = match StringRef::from_str(text) {
        Ok(plain) => ItemSerializer::new().bare_item(plain).finish(),
        Err(_) => ItemSerializer::new()
            .bare_item(sfv::RefBareItem::DisplayString(text))
            .finish(),
    };
    HeaderValue::try_from(item).ok()
}

/// Writes a list of texts; `None` when it is empty, since an empty list is no field.
pub fn write_list(texts: &[String]) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    for text in texts {
        match StringRef::from_str(text) {
            Ok(plain) => list.bare_item(plain),
            Err(_) => list.bare_item(sfv::RefBareItem::DisplayString(text)),
        };
    }
    HeaderValue::try_from(list.finish()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_of_all_spellings() {
        for (written, read) in [
            (r#""cross-border payment""#, Some("cross-border payment")),
            (r#""a \"quoted\" word""#, Some("a \"quoted\" word")),
            ("token", Some("token")),
            (r#"%"z%c3%bcrich""#, Some("zürich")),
            ("12", None),
            (r#""open"#, None),
            (r#""a", "b""#, None),
            ("", None),
        ] {
            assert_eq!(text(written.as_bytes()).as_deref(), read, "{written}");
        }
    }

    #[test]
    fn lists_of_texts() {
        let tags = list_of_text(br#""team-finance", env-prod"#);
        assert_eq!(tags.unwrap(), ["team-finance", "env-prod"]);
        assert_eq!(list_of_text(b"(a b)"), None);
        assert_eq!(write_list(&[]), None);
    }

    proptest! {
        #[test]
        fn written_texts_read_back(original in "\\PC{0,40}") {
            let written = write_text(&original).unwrap();
            prop_assert_eq!(text(written.as_bytes()), Some(original));
        }

        #[test]
        fn written_lists_read_back(original in proptest::collection::vec("\\PC{0,12}", 1..5)) {
            let written = write_list(&original).unwrap();
            prop_assert_eq!(list_of_text(written.as_bytes()), Some(original));
        }
    }
}
