use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A word in a trace that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKind {
    /// What the word was read as, for the message.
    pub what: &'static str,
    /// The word itself.
    pub word: String,
}

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} `{}`", self.what, self.word)
    }
}

impl std::error::Error for UnknownKind {}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant,)* }

        impl $name {
            /// Every value, in the order of their codes.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The word that traces and reports use.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }

        impl FromStr for $name {
            type Err = UnknownKind;

            fn from_str(word: &str) -> Result<Self, UnknownKind> {
                match word {
                    $($word => Ok($name::$variant),)*
                    _ => Err(UnknownKind { what: $what, word: word.to_owned() }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

words! {
    /// What an object is.
    ObjectKind ("kind of object") {
        /// Static data of an executable or a library.
        Static = "static",
        /// A piece of heap, from an allocator.
        Heap = "heap",
        /// A thread's stack.
        Stack = "stack",
        /// Anonymous or shared memory that the program mapped itself.
        Mapping = "mapping",
        /// A mapped file, text of executables and libraries included.
        File = "file",
    }
}

words! {
    /// How a touch became known.
    TouchSource ("source of a touch") {
        /// The accessed bit, read by the scan at the end of the interval.
        Scan = "scan",
        /// The accessed bit, read before the page vanished within the interval.
        Vanish = "vanish",
        /// The page's `PG_young` or `PG_referenced` flag: somebody else took the accessed bit
        /// (DAMON, idle page tracking), or the kernel reached the page without using the mapping.
        PageFlag = "page_flag",
        /// The page is pinned for direct access by a device or the kernel: it may be accessed at
        /// any time with no trace, so it counts in every interval while pinned.
        Pinned = "pinned",
        /// The accessed bit is set but the kernel cannot clear it (hugetlb, zero page, mapped
        /// device memory): it counts in every interval since it was first touched.
        Sticky = "sticky",
        /// Every access was counted while the program ran under an emulator.
        Exact = "exact",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for kind in ObjectKind::ALL {
            assert_eq!(kind.word().parse::<ObjectKind>().as_ref(), Ok(kind));
        }
        for source in TouchSource::ALL {
            assert_eq!(source.word().parse::<TouchSource>().as_ref(), Ok(source));
        }
        assert!("steak".parse::<ObjectKind>().is_err());
    }
}
