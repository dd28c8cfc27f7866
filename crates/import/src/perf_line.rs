//! One line of `perf script`, taken apart.
//!
//! perf prints the fields that `-F` names in an order of its own: `comm pid/tid [cpu] time: period event: address data-source
//! weight ip symbol (module)`, whatever order they are named in. Each may be missing.

use crate::numbers::{decimal, hexadecimal, seconds};

/// What stands before an event's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) command: &'a [u8],
    pub(crate) pid: Option<u32>,
    pub(crate) tid: Option<u32>,
    pub(crate) cpu: Option<u32>,
    pub(crate) time: u64,
    /// What follows the time.
    pub(crate) rest: &'a [u8],
}

/// Words with the places where they begin.
fn words(line: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + line[at..].iter().position(|b| !b.is_ascii_whitespace())?;
        let rest = &line[start..];
        let length = rest.iter().position(u8::is_ascii_whitespace);
        let end = start + length.unwrap_or(rest.len());
        at = end;
        Some((start, &line[start..end]))
    })
}

/// The time of a line, such as `15369.153442:`.
fn time(word: &[u8]) -> Option<u64> {
    let number = word.strip_suffix(b":")?;
    let point = memchr::memchr(b'.', number)?;
    match number.len() - point - 1 {
        6 | 9 => seconds(number),
        _ => None,
    }
}

/// Takes a line's beginning apart; none where it has no time.
pub(crate) fn head(line: &[u8]) -> Option<Head<'_>> {
    let (mut before, mut last): ((usize, &[u8]), (usize, &[u8])) = ((0, b""), (0, b""));
    for (at, word) in words(line) {
        let Some(time) = time(word) else {
            (before, last) = (last, (at, word));
            continue;
        };
        let mut head = Head {
            command: b"",
            pid: None,
            tid: None,
            cpu: None,
            time,
            rest: line[at + word.len()..].trim_ascii(),
        };
        let mut id = last;
        if let Some(cpu) = last.1.strip_prefix(b"[").and_then(|w| w.strip_suffix(b"]")) {
            head.cpu = number(cpu);
            id = before;
        }
        match memchr::memchr(b'/', id.1) {
            Some(slash) => {
                head.pid = number(&id.1[..slash]);
                head.tid = number(&id.1[slash + 1..]);
            }
            None => head.tid = number(id.1),
        }
        let is_id = head.pid.is_some() || head.tid.is_some();
        let end = if is_id { id.0 } else { id.0 + id.1.len() };
        head.command = line[..end.min(line.len())].trim_ascii();
        return Some(head);
    }
    None
}

fn number(digits: &[u8]) -> Option<u32> {
    u32::try_from(decimal(digits)?).ok()
}

/// An instruction, or an address, with the symbol and the module that perf found for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbolized<'a> {
    pub(crate) address: u64,
    /// `symbol+0x1f (module)`; empty where perf printed none.
    pub(crate) symbol: &'a [u8],
}

impl<'a> Symbolized<'a> {
    /// The function, without the offset in it, and the module.
    pub(crate) fn names(&self) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        let known = |name: &&[u8]| !name.is_empty() && *name != b"[unknown]" && *name != b"inlined";
        let open = memchr::memmem::rfind(self.symbol, b" (");
        let (name, module) = match (open, self.symbol.strip_suffix(b")")) {
            (Some(open), Some(inner)) if open + 2 <= inner.len() => {
                (&self.symbol[..open], &inner[open + 2..])
            }
            _ => match self
                .symbol
                .strip_prefix(b"(")
                .and_then(|s| s.strip_suffix(b")"))
            {
                Some(module) => (&b""[..], module),
                None => (self.symbol, &b""[..]),
            },
        };
        let plus = memchr::memmem::rfind(name, b"+0x");
        let name = name[..plus.unwrap_or(name.len())].trim_ascii();
        (Some(name).filter(known), Some(module).filter(known))
    }
}

/// What stands behind an event's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body<'a> {
    pub(crate) event: &'a [u8],
    pub(crate) address: Option<u64>,
    /// perf's words for the data source, from the first bar on.
    pub(crate) data_source: &'a [u8],
    pub(crate) weight: Option<u64>,
    pub(crate) ip: Option<Symbolized<'a>>,
}

/// The most numbers that perf prints in a line.
const NUMBERS: usize = 8;

/// Numbers, each perhaps with a symbol behind it.
#[derive(Default)]
struct Numbers<'a> {
    list: [(&'a [u8], &'a [u8]); NUMBERS],
    count: usize,
}

impl<'a> Numbers<'a> {
    fn of(text: &'a [u8]) -> Numbers<'a> {
        let mut found = Numbers::default();
        // Where a symbol began, while its module has not ended it.
        let mut symbol: Option<usize> = None;
        let mut list = words(text).peekable();
        while let Some((at, word)) = list.next() {
            let is_number = is_address(word);
            if symbol.is_none() && is_number {
                if found.count == NUMBERS {
                    break;
                }
                found.list[found.count].0 = word;
                found.count += 1;
                continue;
            }
            let start = *symbol.get_or_insert(at);
            let ends = list.peek().is_none_or(|next| is_address(next.1)) && word.ends_with(b")");
            if (ends || list.peek().is_none()) && found.count > 0 {
                found.list[found.count - 1].1 = &text[start..at + word.len()];
                symbol = None;
            }
        }
        found
    }

    fn all(&self) -> &[(&'a [u8], &'a [u8])] {
        &self.list[..self.count]
    }
}

/// A number in either base; short words of letters alone are names.
fn is_address(word: &[u8]) -> bool {
    let has_digit = word.iter().any(u8::is_ascii_digit);
    word.len() <= 18 && (has_digit || word.len() >= 8) && hexadecimal(word).is_some()
}

fn symbolized<'a>((digits, symbol): &(&'a [u8], &'a [u8])) -> Option<Symbolized<'a>> {
    Some(Symbolized {
        address: hexadecimal(digits)?,
        symbol,
    })
}

/// Takes what follows the time apart. The message says what is wrong.
pub(crate) fn body(rest: &[u8]) -> Result<Body<'_>, &'static str> {
    let mut body = Body::default();
    let mut rest = rest;
    // The event is the first word that ends with a colon; at most a period stands before it.
    for (position, (at, word)) in words(rest).take(2).enumerate() {
        if let Some(event) = word.strip_suffix(b":") {
            body.event = event;
            rest = &rest[at + word.len()..];
            break;
        }
        if position == 0 && decimal(word).is_none() {
            break;
        }
    }
    let Some(bar) = memchr::memchr(b'|', rest) else {
        return plain(body, rest);
    };
    let before = Numbers::of(&rest[..bar]);
    // The last number is the data source itself; of those before it, the last is the address.
    match before.all() {
        [] | [_] => (),
        [.., address, _] => body.address = hexadecimal(address.0),
    }
    let end = bar + words_of_source(&rest[bar..]);
    body.data_source = rest[bar..end].trim_ascii();
    let after = Numbers::of(&rest[end..]);
    match after.all() {
        [] => (),
        [only] if only.1.is_empty() && decimal(only.0).is_some() => body.weight = decimal(only.0),
        [only] => body.ip = symbolized(only),
        [weight, .., ip] => {
            body.weight = decimal(weight.0);
            // The last that has a symbol; physical addresses may follow it.
            let with_symbol = after.all().iter().rfind(|n| !n.1.is_empty());
            body.ip = match (with_symbol, after.count) {
                (Some(ip), _) => symbolized(ip),
                (None, 2) => symbolized(ip),
                (None, _) => symbolized(&after.all()[1]),
            };
        }
    }
    Ok(body)
}

/// Without a data source: address, weight, instruction.
fn plain<'a>(mut body: Body<'a>, rest: &'a [u8]) -> Result<Body<'a>, &'static str> {
    let numbers = Numbers::of(rest);
    let list = numbers.all();
    if list.is_empty() && !rest.trim_ascii().is_empty() && body.event.is_empty() {
        return Err("it is neither a sample nor a record that perf script prints");
    }
    let ip = list.iter().rposition(|n| !n.1.is_empty());
    match (list, ip) {
        ([], _) => (),
        ([only], Some(0)) => body.ip = symbolized(only),
        ([only], _) => body.address = hexadecimal(only.0),
        ([address, .., last], None) => {
            body.address = hexadecimal(address.0);
            body.weight = decimal(last.0);
        }
        // An address with a symbol, and a weight behind it; the call chain follows in lines of its own.
        ([address, rest @ ..], Some(0)) => {
            body.address = hexadecimal(address.0);
            body.weight = rest.first().and_then(|n| decimal(n.0));
        }
        ([address, .., _], Some(ip)) => {
            body.address = hexadecimal(address.0);
            body.ip = symbolized(&list[ip]);
            if ip > 1 {
                body.weight = decimal(list[1].0);
            }
        }
    }
    Ok(body)
}

/// How far perf's words for the data source reach: the last part, `LCK No` or `BLK N/A`, ends where its words do.
fn words_of_source(text: &[u8]) -> usize {
    let last = memchr::memrchr(b'|', text).unwrap_or(0);
    let mut end = text.len();
    for (position, (at, word)) in words(&text[last + 1..]).enumerate() {
        let is_value = matches!(word, b"N/A" | b"No" | b"Yes" | b"Data" | b"Addr" | b"or");
        if position > 0 && !is_value && is_decimal_or_address(word) {
            end = last + 1 + at;
            break;
        }
    }
    end
}

fn is_decimal_or_address(word: &[u8]) -> bool {
    decimal(word).is_some() || is_address(word)
}

/// A line of a call chain: `ADDRESS symbol+0x1f (module)`.
pub(crate) fn chain_frame(line: &[u8]) -> Option<Symbolized<'_>> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace);
    let end = end.unwrap_or(line.len());
    Some(Symbolized {
        address: hexadecimal(&line[..end])?,
        symbol: line[end..].trim_ascii(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL: &[u8] = b"            true 15526/15526 [001] 15679.442707:          1 cpu/mem-loads,ldlat=30/P:     561c0a2c61e0      1e05080021 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A              30 ffffffff81752b6a elf_load+0x28a ([kernel.kallsyms])";

    #[test]
    fn heads_with_any_fields() {
        let head_of = |line: &'static [u8]| {
            let head = head(line).unwrap();
            let command = String::from_utf8_lossy(head.command).into_owned();
            (command, head.pid, head.tid, head.cpu, head.time)
        };
        let time = 15_679_442_707_000;
        assert_eq!(
            head_of(INTEL),
            ("true".into(), Some(15526), Some(15526), Some(1), time)
        );
        assert_eq!(
            head_of(b"Web Content 12 15679.442707: x:"),
            ("Web Content".into(), None, Some(12), None, time)
        );
        assert_eq!(
            head_of(b"12 15679.442707000: x:"),
            (String::new(), None, Some(12), None, time)
        );
        assert_eq!(
            head_of(b" 15679.442707: x:"),
            (String::new(), None, None, None, time)
        );
        assert_eq!(
            head_of(b"swapper 0 [003] 15679.442707: x:"),
            ("swapper".into(), None, Some(0), Some(3), time)
        );
        assert_eq!(
            head_of(b"a -1/0 15679.442707: x:"),
            ("a".into(), None, Some(0), None, time)
        );
        assert_eq!(head(b"no time here: 12.3:"), None);
        assert_eq!(head(b""), None);
    }

    fn of(line: &[u8]) -> (Option<u64>, Option<u64>, Option<u64>, String) {
        let body = body(head(line).unwrap().rest).unwrap();
        let symbol = body.ip.map_or(String::new(), |ip| {
            String::from_utf8_lossy(ip.symbol).into_owned()
        });
        (
            body.address,
            body.weight,
            body.ip.map(|ip| ip.address),
            symbol,
        )
    }

    #[test]
    fn bodies_with_any_fields() {
        let ip = Some(0xffff_ffff_8175_2b6a);
        let load = "elf_load+0x28a ([kernel.kallsyms])".to_owned();
        assert_eq!(
            of(INTEL),
            (Some(0x561c_0a2c_61e0), Some(30), ip, load.clone())
        );
        // A symbol behind the address.
        let line = b"a 1 1.000000: 1 page-faults: 561c0a2c61e0 __progname+0x0 (/usr/bin/true) 1e05080021 |OP N/A|LVL N/A|LCK N/A|BLK  N/A  0 ffffffff81752b6a elf_load+0x28a ([kernel.kallsyms])";
        assert_eq!(
            of(line),
            (Some(0x561c_0a2c_61e0), Some(0), ip, load.clone())
        );
        // No data source.
        let line = b"a 1 1.000000: 1 page-faults: 561c0a2c61e0 ffffffff81752b6a elf_load+0x28a ([kernel.kallsyms])";
        assert_eq!(of(line), (Some(0x561c_0a2c_61e0), None, ip, load));
        // A function whose name has blanks, and a physical address at the end.
        let line = b"a 1 1.000000: mem: 7f0000001000 5080021 |OP LOAD|LVL L1 hit|SNP None|TLB L1 hit|LCK No 12 401136 f(int, std::pair<int, char>)+0x4 (/bin/x y) 1234567000";
        assert_eq!(
            of(line),
            (
                Some(0x7f00_0000_1000),
                Some(12),
                Some(0x40_1136),
                "f(int, std::pair<int, char>)+0x4 (/bin/x y)".into()
            )
        );
        // Nothing but an instruction; nothing but a weight.
        assert_eq!(
            of(b"a 1 1.000000: cpu-clock:  401136 main+0x6 (/bin/x)"),
            (None, None, Some(0x40_1136), "main+0x6 (/bin/x)".into())
        );
        assert_eq!(
            of(b"a 1 1.000000: mem: 7f0000001000 5080021 |OP LOAD|LVL L1 hit|LCK No 12"),
            (Some(0x7f00_0000_1000), Some(12), None, String::new())
        );
    }

    #[test]
    fn names_are_found_in_symbols() {
        let names = |symbol: &'static [u8]| {
            let (name, module) = Symbolized { address: 0, symbol }.names();
            let text = |n: Option<&[u8]>| n.map(|n| String::from_utf8_lossy(n).into_owned());
            (text(name), text(module))
        };
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(
            names(b"f(int)+0x4 (/bin/x)"),
            (some("f(int)"), some("/bin/x"))
        );
        assert_eq!(names(b"[unknown] ([unknown])"), (None, None));
        assert_eq!(names(b"(/bin/x)"), (None, some("/bin/x")));
        assert_eq!(names(b"main"), (some("main"), None));
        assert_eq!(names(b""), (None, None));
    }
}
