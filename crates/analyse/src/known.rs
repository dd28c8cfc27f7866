//! Figures that may not be known.

use serde::{Serialize, Serializer};
use ts_rs::TS;

/// A figure, a bound of one, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Known<T> {
    /// It is this.
    Exact(T),
    /// It is this or more.
    AtLeast(T),
    /// It is not known, and why.
    Absent(String),
}

/// Nobody has said anything yet.
impl<T> Default for Known<T> {
    fn default() -> Self {
        Known::Absent("not looked for".to_owned())
    }
}

impl<T> Known<T> {
    /// Exact where all was seen, else at least so much.
    pub fn of(value: T, all: bool) -> Known<T> {
        match all {
            true => Known::Exact(value),
            false => Known::AtLeast(value),
        }
    }

    /// The figure or its bound.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Known::Exact(value) | Known::AtLeast(value) => Some(value),
            Known::Absent(_) => None,
        }
    }

    /// A copy of the figure or its bound; the type's zero where it is not known, for sums that an absent figure adds
    /// nothing to.
    pub fn or_zero(&self) -> T
    where
        T: Copy + Default,
    {
        self.value().copied().unwrap_or_default()
    }

    /// The figure made into another one; what is not known stays so, for the same reason.
    pub fn map<U>(&self, make: impl FnOnce(&T) -> U) -> Known<U> {
        match self {
            Known::Exact(value) => Known::Exact(make(value)),
            Known::AtLeast(value) => Known::AtLeast(make(value)),
            Known::Absent(why) => Known::Absent(why.clone()),
        }
    }

    /// The plain figure or its bound, and null where it is not known: for fields of JSON that are a number by name, whose
    /// reason stands in `unknown`.
    pub(crate) fn plain<S: Serializer>(known: &Known<T>, to: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize,
    {
        known.value().serialize(to)
    }

    /// As a person reads it: `3`, `at least 3` or `not known`.
    pub fn text(&self, show: impl Fn(&T) -> String) -> String {
        match self {
            Known::Exact(value) => show(value),
            Known::AtLeast(value) => format!("at least {}", show(value)),
            Known::Absent(_) => "not known".to_owned(),
        }
    }
}

impl<T> Known<Vec<T>> {
    /// The items; none where they are not known.
    pub fn items(&self) -> &[T] {
        self.value().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_neither_a_number_nor_silent() {
        let json = |k: &Known<u64>| serde_json::to_string(k).unwrap();
        assert_eq!(json(&Known::of(3, true)), r#"{"exact":3}"#);
        assert_eq!(json(&Known::of(3, false)), r#"{"at_least":3}"#);
        let absent = Known::Absent("no touches".to_owned());
        assert_eq!(json(&absent), r#"{"absent":"no touches"}"#);
        assert_eq!(absent.text(u64::to_string), "not known");
        assert_eq!(Known::AtLeast(3).text(i32::to_string), "at least 3");
    }
}
