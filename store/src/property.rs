//! Properties of drives in their addresses: `,name=value` behind the path.

use std::path::Path;

use crate::error::StoreError;

/// What drives of a kind are, in words, and the properties that they have.
pub(crate) struct Known {
    pub kind: &'static str,
    pub names: &'static [&'static str],
}

impl Known {
    /// The error that a property was given twice.
    pub(crate) fn twice(address: &str, name: &str) -> StoreError {
        StoreError::Property { address: address.to_owned(), reason: format!("{name} is given twice") }
    }

    /// The error that a property of a tensor stands behind none.
    pub(crate) fn no_tensor(address: &str, name: &str) -> StoreError {
        let reason = format!("{name}= is said of a tensor: give it behind tensor=");
        StoreError::Property { address: address.to_owned(), reason }
    }

    /// The error that there is no such property.
    pub(crate) fn unknown(&self, address: &str, name: &str) -> StoreError {
        let reason = format!("{} has no property {name:?}; it has {}", self.kind, self.names.join(", "));
        StoreError::Property { address: address.to_owned(), reason }
    }

    /// What is wrong with the address of a drive that was taken to be at `path`, where nothing is, if the end of that looks like
    /// properties. A path may have commas and question marks: whoever asks has seen that this one leads nowhere.
    pub(crate) fn mistaken(&self, address: &str, path: &Path) -> Option<StoreError> {
        let text = path.to_str()?;
        let (before, properties) = match text.rsplit_once('?').map(|(before, rest)| (before, properties(rest))) {
            Some((before, Some(properties))) => (before, properties),
            _ => return stranger(text).map(|name| self.unknown(address, name)),
        };
        if let Some((name, _)) = properties.iter().find(|(name, _)| !self.names.contains(name)) {
            return Some(self.unknown(address, name));
        }
        let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
        let written: String = properties.iter().map(|(name, value)| format!(",{name}={value}")).collect();
        let reason = format!("properties are written behind commas: {scheme}:{before}{written}");
        Some(StoreError::Property { address: address.to_owned(), reason })
    }
}

/// The name of what looks like a property at the end of `text`, behind its last comma.
pub(crate) fn stranger(text: &str) -> Option<&str> {
    let (_, last) = text.rsplit_once(',')?;
    Some(property(last)?.0)
}

/// `a=b&c=d`, if that is what it is.
fn properties(text: &str) -> Option<Vec<(&str, &str)>> {
    text.split(['&', ',']).map(property).collect()
}

/// `name=value`. A slash goes on with a path.
fn property(text: &str) -> Option<(&str, &str)> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    text.split_once('=').filter(|(name, value)| is_name(name) && !value.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_properties_is_told_from_paths() {
        let known = Known { kind: "a file", names: &["depth", "direct"] };
        let said = |path: &str| Some(known.mistaken(&format!("attached:{path}"), Path::new(path))?.to_string());
        for (path, hint) in [
            ("F?depth=4", "attached:F,depth=4"),
            ("a?b?depth=4&direct=1", "attached:a?b,depth=4,direct=1"),
            ("F?lba=512", "no property \"lba\"; it has depth, direct"),
            ("F?depth=4&lba=512", "no property \"lba\""),
            ("a,b,lba=512", "no property \"lba\""),
            ("F,lba=", "no property \"lba\""),
        ] {
            let said = said(path).unwrap_or_else(|| panic!("{path}"));
            assert!(said.contains(hint), "{path}: {said}");
        }
        for path in ["F", "a,b", "what?", "a?b", "a?b=c/d", "a,b=c/d", "a,B=1", "a,=1", "F?depth=4&x", "=1"] {
            assert_eq!(said(path), None, "{path}");
        }
    }
}
