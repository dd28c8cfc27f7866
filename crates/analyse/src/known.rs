//! Figures that may not be known.

use serde::{Serialize, Serializer};
use ts_rs::{Config, TS, TypeVisitor};

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

/// Figures that a trace has together or not at all. Beside others, each is written under its own name, and is null where
/// they are not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Together<T>(pub Option<T>);

/// Nobody has said anything yet.
impl<T> Default for Together<T> {
    fn default() -> Self {
        Together(None)
    }
}

impl<T> Together<T> {
    /// The figures, where they are known.
    pub const fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

/// Figures that have names of their own; [`together!`] declares such.
pub trait Figures: Copy {
    /// The form in which they are written.
    type Fields: Serialize + TS + From<Option<Self>> + 'static;
}

impl<T: Figures> Serialize for Together<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        T::Fields::from(self.0).serialize(to)
    }
}

impl<T: Figures> TS for Together<T> {
    type WithoutGenerics = Self;
    type OptionInnerType = Self;

    fn name(config: &Config) -> String {
        T::Fields::name(config)
    }

    fn inline(config: &Config) -> String {
        T::Fields::inline(config)
    }

    fn inline_flattened(config: &Config) -> String {
        T::Fields::inline_flattened(config)
    }

    fn visit_dependencies(visitor: &mut impl TypeVisitor)
    where
        Self: 'static,
    {
        T::Fields::visit_dependencies(visitor);
    }
}

/// Declares [`Figures`], and the form in which they are written. Those behind `maybe` may be unknown where the others are
/// known.
macro_rules! together {
    ($(#[$about:meta])* $vis:vis $name:ident as $fields:ident
     { $($(#[$doc:meta])* $field:ident: $type:ty,)* }
     maybe { $($(#[$maybe_doc:meta])* $maybe:ident: $maybe_type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        $vis struct $name {
            $($(#[$doc])* $vis $field: $type,)*
            $($(#[$maybe_doc])* $vis $maybe: Option<$maybe_type>,)*
        }

        $(#[$about])*
        #[derive(Serialize, TS)]
        $vis struct $fields {
            $($(#[$doc])* $field: Option<$type>,)*
            $($(#[$maybe_doc])* $maybe: Option<$maybe_type>,)*
        }

        impl From<Option<$name>> for $fields {
            fn from(of: Option<$name>) -> $fields {
                $fields {
                    $($field: of.map(|f| f.$field),)*
                    $($maybe: of.and_then(|f| f.$maybe),)*
                }
            }
        }

        impl $crate::known::Figures for $name {
            type Fields = $fields;
        }
    };
}
pub(crate) use together;

#[cfg(test)]
mod tests {
    use super::*;

    together! {
        /// Sizes.
        Sizes as SizesFields {
            /// One.
            small: u64,
        }
        maybe {
            /// Another.
            large: u64,
        }
    }

    #[derive(Serialize, TS)]
    struct Row {
        name: &'static str,
        #[serde(flatten)]
        sizes: Together<Sizes>,
    }

    #[test]
    fn figures_that_are_known_together_are_null_together() {
        let json = |sizes| {
            let sizes = Together(sizes);
            serde_json::to_string(&Row { name: "a", sizes }).unwrap()
        };
        let some = |large| Some(Sizes { small: 0, large });
        assert_eq!(json(None), r#"{"name":"a","small":null,"large":null}"#);
        assert_eq!(json(some(None)), r#"{"name":"a","small":0,"large":null}"#);
        assert_eq!(json(some(Some(7))), r#"{"name":"a","small":0,"large":7}"#);
        let types = Row::inline(&Config::new().with_large_int("number"));
        assert!(types.contains("small: number | null"), "{types}");
    }

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
