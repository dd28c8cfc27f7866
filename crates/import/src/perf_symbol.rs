//! Code as `perf script` prints it: symbol, offset and module.

use crate::numbers::{decimal, hexadecimal};
use crate::perf_line::words;

/// An instruction, with the symbol and the module that perf found for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbolized<'a> {
    pub(crate) address: u64,
    /// `symbol+0x1f (module)` and what stands behind it; empty where perf printed none.
    pub(crate) symbol: &'a [u8],
}

/// What perf says of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names<'a> {
    /// Without the offset in it.
    pub(crate) function: Option<&'a [u8]>,
    pub(crate) module: Option<&'a [u8]>,
    /// Where in the module it is, of `-F +dsoff`.
    pub(crate) offset: Option<u64>,
}

impl<'a> Symbolized<'a> {
    pub(crate) fn names(&self) -> Names<'a> {
        let known = |name: &&[u8]| !name.is_empty() && *name != b"[unknown]" && *name != b"inlined";
        let (name, module) = match parentheses(self.symbol) {
            Some((open, close)) => (&self.symbol[..open], &self.symbol[open + 1..close]),
            None => (without_tail(self.symbol), &b""[..]),
        };
        let (module, offset) = match offset_at_end(module) {
            Some((module, offset)) => (module, Some(offset)),
            None => (module, None),
        };
        // A file that was deleted is the file that it was; memory without a file is called so always.
        let module = match module.starts_with(b"/memfd:") {
            true => module,
            false => module.strip_suffix(b" (deleted)").unwrap_or(module),
        };
        let name = name.trim_ascii();
        let function = offset_at_end(name).map_or(name, |(name, _)| name);
        let module = Some(module).filter(known);
        Names {
            function: Some(function).filter(known),
            offset: offset.filter(|_| module.is_some()),
            module,
        }
    }
}

/// `name+0x1f` as name and number.
fn offset_at_end(text: &[u8]) -> Option<(&[u8], u64)> {
    let plus = memchr::memmem::rfind(text, b"+0x")?;
    Some((&text[..plus], hexadecimal(&text[plus + 3..])?))
}

/// Where the module stands behind a symbol. Names of functions and paths of modules may have parentheses as well.
fn parentheses(symbol: &[u8]) -> Option<(usize, usize)> {
    let opens = |at: &usize| *at == 0 || symbol[at - 1].is_ascii_whitespace();
    let is_module = |at: &usize| {
        let inside = &symbol[at + 1..];
        inside.starts_with(b"/") || inside.starts_with(b"[") || inside.starts_with(b"inlined)")
    };
    let mut all = memchr::memchr_iter(b'(', symbol).filter(opens);
    if let Some(open) = all.clone().find(is_module) {
        return Some((open, closing(symbol, open)?));
    }
    // A name that is no path, such as that of generated code, stands at the end.
    let open = all.next_back()?;
    let close = symbol.len().checked_sub(1)?;
    (symbol[close] == b')').then_some((open, close))
}

/// The parenthesis that closes the one at `open`, else the last one.
fn closing(text: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0u32;
    for (at, byte) in text.iter().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(at),
            b')' => depth -= 1,
            _ => (),
        }
    }
    memchr::memrchr(b')', text).filter(|close| *close > open)
}

/// A symbol behind which no module stands, without sizes of pages and what stands behind its own offset.
fn without_tail(symbol: &[u8]) -> &[u8] {
    let mut end = symbol.len();
    for (at, word) in words(symbol) {
        if offset_at_end(word).is_some() {
            return &symbol[..at + word.len()];
        }
        let digits = word.strip_suffix(b"K").or(word.strip_suffix(b"M"));
        let digits = digits.or(word.strip_suffix(b"G"));
        let is_size = word == b"N/A" || digits.is_some_and(|digits| decimal(digits).is_some());
        match is_size && at > 0 {
            true => end = end.min(at),
            false => end = symbol.len(),
        }
    }
    symbol[..end].trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_symbols() {
        let names = |symbol: &'static [u8]| {
            let names = Symbolized { address: 0, symbol }.names();
            let text = |n: Option<&[u8]>| n.map(|n| String::from_utf8_lossy(n).into_owned());
            (text(names.function), text(names.module), names.offset)
        };
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(
            names(b"f(int)+0x4 (/bin/x)"),
            (some("f(int)"), some("/bin/x"), None)
        );
        assert_eq!(names(b"[unknown] ([unknown])"), (None, None, None));
        assert_eq!(names(b"(/bin/x)"), (None, some("/bin/x"), None));
        assert_eq!(names(b"main"), (some("main"), None, None));
        assert_eq!(names(b"main 4K N/A"), (some("main"), None, None));
        assert_eq!(
            names(b"f(int, int)+0x2 4K"),
            (some("f(int, int)"), None, None)
        );
        assert_eq!(names(b""), (None, None, None));
        assert_eq!(names(b"f+0x1 (inlined)"), (some("f"), None, None));
        assert_eq!(
            names(b"[unknown] (/opt/tool+0x1abc)"),
            (None, some("/opt/tool"), Some(0x1abc))
        );
        assert_eq!(
            names(b"plug+0x4 (/tmp/plug.so (deleted))"),
            (some("plug"), some("/tmp/plug.so"), None)
        );
        assert_eq!(
            names(b"[unknown] (/memfd:jit (deleted))"),
            (None, some("/memfd:jit (deleted)"), None)
        );
        assert_eq!(
            names(b"run+0x4 (/opt/App (64 bit)/run)   0x401a00/0x401a10/P/-/-/0"),
            (some("run"), some("/opt/App (64 bit)/run"), None)
        );
        assert_eq!(
            names(b"(anonymous namespace)::f(int)+0x4 (perf-12.map)"),
            (
                some("(anonymous namespace)::f(int)"),
                some("perf-12.map"),
                None
            )
        );
    }
}
