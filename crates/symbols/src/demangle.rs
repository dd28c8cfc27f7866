//! Names as their author wrote them.

use std::fmt::Write as _;

/// A demangled name longer than this is cut: hostile symbols unfold exponentially.
const NAME_LIMIT: usize = 4096;

struct Limited(String);

impl std::fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > NAME_LIMIT {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Demangles a Rust or C++ symbol, without hashes, parameters and return types; others come back as they are.
pub(crate) fn demangle(name: &str) -> String {
    try_demangle(name).unwrap_or_else(|| {
        // `@VERSION` of dynamic symbols says nothing to a reader.
        let plain = name
            .split('@')
            .next()
            .filter(|plain| !plain.is_empty())
            .unwrap_or(name);
        // The C library's aliases for its own calls.
        let plain = plain.strip_prefix("__GI_").unwrap_or(plain);
        plain.chars().take(NAME_LIMIT).collect()
    })
}

/// As [`demangle`], `None` where the name is not mangled.
pub(crate) fn try_demangle(name: &str) -> Option<String> {
    let mut out = Limited(String::new());
    // Old Rust symbols look like C++ ones, save for the hash at their end.
    if (!name.starts_with("_Z") || has_rust_hash(name))
        && let Ok(rust) = rustc_demangle::try_demangle(name)
    {
        write!(out, "{rust:#}").ok()?;
        return Some(out.0);
    }
    // GCC appends `.part.0`, `.constprop.1`, `.cold` and `.lto_priv.2` to clones; the demangler knows some.
    let options = cpp_demangle::DemangleOptions::new()
        .no_params()
        .no_return_type();
    for candidate in [name, name.split(['.', '@']).next().unwrap_or(name)] {
        if !candidate.starts_with("_Z") {
            continue;
        }
        if let Ok(symbol) = cpp_demangle::Symbol::new(candidate) {
            out.0.clear();
            if symbol.structured_demangle(&mut out, &options).is_ok() {
                return Some(without_parameters(&out.0));
            }
        }
    }
    None
}

fn has_rust_hash(name: &str) -> bool {
    name.match_indices("17h").any(|(at, _)| {
        let hash = name.as_bytes().get(at + 3..at + 20);
        hash.is_some_and(|hash| {
            hash.ends_with(b"E") && hash[..16].iter().all(u8::is_ascii_hexdigit)
        })
    })
}

/// Drops the parameters of a function that encloses the name: `setup(int)::buffer` is `setup::buffer`.
fn without_parameters(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(open) = rest.find('(') {
        let Some(close) = matching(rest, open) else {
            break;
        };
        let (before, group, after) = (&rest[..open], &rest[open..=close], &rest[close + 1..]);
        short.push_str(before);
        let scope = after.strip_prefix(" const").unwrap_or(after);
        let operator = before.ends_with("operator");
        if scope.starts_with("::")
            && group != "(anonymous namespace)"
            && !before.is_empty()
            && !operator
        {
            rest = scope;
        } else {
            short.push_str(group);
            rest = after;
        }
    }
    short.push_str(rest);
    short
}

/// The position of the parenthesis that closes the one at `open`.
fn matching(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, letter) in text.char_indices().skip_while(|(at, _)| *at < open) {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_written() {
        assert_eq!(demangle("_ZN2ns6Solver5setupEi"), "ns::Solver::setup");
        assert_eq!(demangle("_ZZN2ns5setupEiE6buffer"), "ns::setup::buffer");
        assert_eq!(demangle("_ZN3app5TABLE17h0123456789abcdefE"), "app::TABLE");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(
            demangle("_ZN12_GLOBAL__N_16hiddenE"),
            "(anonymous namespace)::hidden"
        );
        assert_eq!(demangle("__GI___qsort_r"), "__qsort_r");
        assert_eq!(demangle("plain"), "plain");
    }
}
