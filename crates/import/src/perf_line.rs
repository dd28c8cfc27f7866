//! One line of `perf script`, taken apart.
//!
//! perf prints the fields that `-F` names in an order of its own, whatever order they are named in (`process_event` of
//! `tools/perf/builtin-script.c`): `comm pid/tid [cpu] misc day clock time: period event: address data-source weight latencies cgroup ip
//! symbol (module) registers branches instructions physical-address page-sizes`. Each may be missing. Numbers stand in columns of
//! 16 signs, instructions with a blank before: that distinguishes a number from a symbol that looks like one, and an address from an
//! instruction. What a tracepoint prints of itself is text.

use crate::numbers::{decimal, hexadecimal, seconds};
use crate::perf_symbol::Symbolized;

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
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
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

/// The most words that stand between a name and the time: thread, CPU, mode, day, clock.
const BEFORE_TIME: usize = 5;

/// Takes a line's beginning apart; none where it has no time.
pub(crate) fn head(line: &[u8]) -> Option<Head<'_>> {
    // The nearest to the time first.
    let mut last = [(0, &line[..0]); BEFORE_TIME];
    for (at, word) in words(line) {
        let Some(time) = time(word) else {
            last.rotate_right(1);
            last[0] = (at, word);
            continue;
        };
        let mut near = &last[..];
        if is_day(near[1].1) && is_clock(near[0].1) {
            near = &near[2..];
        }
        if is_mode(near[0].1) && (cpu(near[1].1).is_some() || task(near[1].1).is_some()) {
            near = &near[1..];
        }
        let cpu = cpu(near[0].1);
        if cpu.is_some() {
            near = &near[1..];
        }
        let (at_task, id) = near[0];
        let (end, (pid, tid)) = match task(id) {
            Some(numbers) => (at_task, numbers),
            None => (at_task + id.len(), (None, None)),
        };
        return Some(Head {
            command: line[..end].trim_ascii(),
            pid,
            tid,
            cpu,
            time,
            rest: line[at + word.len()..].trim_ascii(),
        });
    }
    None
}

fn number(digits: &[u8]) -> Option<u32> {
    u32::try_from(decimal(digits)?).ok()
}

/// `[003]`.
fn cpu(word: &[u8]) -> Option<u32> {
    number(word.strip_prefix(b"[")?.strip_suffix(b"]")?)
}

/// Process and thread, or the thread alone; perf prints -1 where it does not know one.
fn task(word: &[u8]) -> Option<(Option<u32>, Option<u32>)> {
    let id = |digits: &[u8]| match digits {
        b"-1" => Some(None),
        digits => number(digits).map(Some),
    };
    match memchr::memchr(b'/', word) {
        Some(slash) => Some((id(&word[..slash])?, id(&word[slash + 1..])?)),
        None => Some((None, id(word)?)),
    }
}

/// What `-F +misc` prints: the mode of the CPU, and flags of records.
fn is_mode(word: &[u8]) -> bool {
    !word.is_empty() && word.len() <= 6 && word.iter().all(|b| b"KUHGgMESp".contains(b))
}

/// `2026-03-04`, of `-F +tod`.
fn is_day(word: &[u8]) -> bool {
    word.len() == 10 && is_pattern(word, b"0000-00-00")
}

/// `05:06:07.000001`.
fn is_clock(word: &[u8]) -> bool {
    word.len() >= 8 && is_pattern(&word[..8], b"00:00:00")
}

fn is_pattern(word: &[u8], pattern: &[u8]) -> bool {
    let mut pairs = word.iter().zip(pattern);
    pairs.all(|(byte, pattern)| match pattern {
        b'0' => byte.is_ascii_digit(),
        sign => byte == sign,
    })
}

/// What stands behind an event's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body<'a> {
    pub(crate) event: &'a [u8],
    pub(crate) period: Option<u64>,
    pub(crate) address: Option<u64>,
    /// perf's words for the data source, from the first bar on.
    pub(crate) data_source: &'a [u8],
    pub(crate) weight: Option<u64>,
    pub(crate) ip: Option<Symbolized<'a>>,
    /// What the only number behind a data source looks like, where no symbol says what it is: a weight is decimal, a physical
    /// address hexadecimal.
    pub(crate) alone: Option<Alone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    Decimal,
    Hexadecimal,
}

const NOT_ALIGNED: &str = "its numbers do not stand in columns as `perf script` prints them, so that a number and a symbol cannot be \
     distinguished; import the text as it was printed";
pub(crate) const AMBIGUOUS: &str = "its numbers may be of several fields; print it with `perf script -F comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,sym,symoff,dso`";
pub(crate) const NO_EVENT: &str = "it has no event; print one with `perf script -F +event`";

/// The most numbers of a line that have a meaning.
const NUMBERS: usize = 8;
/// The columns of numbers; instructions have a blank before theirs.
const COLUMN: usize = 16;
const COLUMN_OF_IP: usize = 17;

/// A number, and the text behind it.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    digits: &'a [u8],
    /// With the blanks before it.
    width: usize,
    text: &'a [u8],
}

impl<'a> Place<'a> {
    fn symbolized(&self) -> Option<Symbolized<'a>> {
        Some(Symbolized {
            address: hexadecimal(self.digits)?,
            symbol: self.text,
        })
    }

    /// Whether what follows may be a symbol or the next number.
    fn is_unclear(&self) -> bool {
        let next = words(self.text).next();
        self.width < COLUMN && next.is_some_and(|(_, word)| hexadecimal(word).is_some())
    }
}

/// The numbers of a text in their columns. The first word may have any width, as its column may begin before the text.
#[derive(Default)]
struct Places<'a> {
    list: [Place<'a>; NUMBERS],
    count: usize,
}

impl<'a> Places<'a> {
    fn of(text: &'a [u8]) -> Result<Places<'a>, &'static str> {
        let mut found = Places::default();
        let (mut before, mut start) = (0, 0);
        for (at, word) in words(text) {
            let width = at + word.len() - before;
            let is_column = before == 0 || width >= COLUMN;
            before = at + word.len();
            if is_column && hexadecimal(word).is_some() && !word.starts_with(b"0x") {
                if found.count == NUMBERS {
                    break;
                }
                found.list[found.count] = Place {
                    digits: word,
                    width,
                    text: b"",
                };
                found.count += 1;
                start = before;
            } else if let Some(last) = found.count.checked_sub(1) {
                found.list[last].text = text[start..before].trim_ascii_start();
            }
        }
        match found.all().iter().any(Place::is_unclear) {
            true => Err(NOT_ALIGNED),
            false => Ok(found),
        }
    }

    fn all(&self) -> &[Place<'a>] {
        &self.list[..self.count]
    }
}

/// The event, which is the first word that ends with a colon, and what follows it: at most a period stands before it.
fn event(rest: &[u8]) -> Option<(Option<u64>, &[u8], &[u8])> {
    let mut period = None;
    for (at, word) in words(rest).take(2) {
        if let Some(event) = word.strip_suffix(b":") {
            return Some((period, event, &rest[at + word.len()..]));
        }
        period = Some(decimal(word)?);
    }
    None
}

/// `system:name`, which prints text of its own; `cycles:u`, `cpu/mem-loads/P` and `mem:0x7f00:rw` do not.
fn is_tracepoint(event: &[u8]) -> bool {
    const MODIFIERS: &[u8] = b"ukhGHpPSDIWebRX";
    if event.contains(&b'/') || event.starts_with(b"mem:0x") {
        return false;
    }
    let name = event.split(|b| *b == b':').nth(1).unwrap_or_default();
    !name.iter().all(|letter| MODIFIERS.contains(letter))
}

/// Takes what follows the time apart. The message says what is wrong.
pub(crate) fn body(rest: &[u8]) -> Result<Body<'_>, &'static str> {
    let (period, event, fields) = event(rest).ok_or(NO_EVENT)?;
    let body = Body {
        event,
        period,
        ..Body::default()
    };
    if is_tracepoint(event) {
        return Ok(body);
    }
    // Of a branch, where it is and where it goes; the second is no access.
    if let Some(arrow) = memchr::memmem::find(fields, b" => ") {
        let from = Places::of(&fields[..arrow])?;
        let ip = from.all().last().and_then(Place::symbolized);
        return Ok(Body { ip, ..body });
    }
    match memchr::memmem::find(fields, b"|OP ") {
        Some(bar) => with_source(body, fields, bar),
        None => plain(body, fields),
    }
}

fn with_source<'a>(
    mut body: Body<'a>,
    fields: &'a [u8],
    bar: usize,
) -> Result<Body<'a>, &'static str> {
    // The last word is the data source itself; before it stands the address, perhaps with a symbol.
    let mut before = words(&fields[..bar]).map(|(_, word)| word);
    body.address = match (before.next(), before.next()) {
        (Some(address), Some(_)) => Some(hexadecimal(address).ok_or(AMBIGUOUS)?),
        _ => None,
    };
    let end = bar + words_of_source(&fields[bar..]);
    body.data_source = fields[bar..end].trim_ascii();
    let after = Places::of(&fields[end..])?;
    match after.all() {
        [] => (),
        [only] if only.text.is_empty() => {
            body.weight = decimal(only.digits).filter(|w| *w <= u64::from(u32::MAX));
            body.alone = Some(match body.weight {
                Some(_) => Alone::Decimal,
                None => Alone::Hexadecimal,
            });
        }
        // Behind an instruction stand physical addresses.
        [ip, ..] if !ip.text.is_empty() => body.ip = ip.symbolized(),
        [weight, rest @ ..] => {
            body.weight = Some(decimal(weight.digits).ok_or(AMBIGUOUS)?);
            body.ip = instruction(rest).and_then(Place::symbolized);
        }
    }
    Ok(body)
}

/// Without a data source: address, weight, instruction.
fn plain<'a>(mut body: Body<'a>, fields: &'a [u8]) -> Result<Body<'a>, &'static str> {
    let places = Places::of(fields)?;
    match places.all() {
        [] => (),
        // An instruction has a blank more before it than an address.
        [first, ..] if first.width > COLUMN_OF_IP => body.ip = first.symbolized(),
        [only] if !only.text.is_empty() && only.width < COLUMN => body.ip = only.symbolized(),
        [address, rest @ ..] => {
            body.address = hexadecimal(address.digits);
            let ip = instruction(rest);
            body.ip = ip.and_then(Place::symbolized);
            // Without an instruction behind it a number may be a weight as well as a physical address.
            let first = rest
                .first()
                .filter(|first| ip.is_some() && first.width == COLUMN);
            body.weight = first.and_then(|weight| decimal(weight.digits));
        }
    }
    Ok(body)
}

/// The instruction among numbers of which the first are weights.
fn instruction<'b, 'a>(rest: &'b [Place<'a>]) -> Option<&'b Place<'a>> {
    let by_column = rest.iter().find(|place| place.width >= COLUMN_OF_IP);
    by_column.or_else(|| rest.iter().find(|place| !place.text.is_empty()))
}

/// How far perf's words for the data source reach: the last part, `LCK No` or `BLK  N/A`, ends where its values do.
fn words_of_source(text: &[u8]) -> usize {
    let last = memchr::memrchr(b'|', text).unwrap_or(0);
    let mut end = last;
    for (position, (at, word)) in words(&text[last + 1..]).enumerate() {
        let is_value = matches!(word, b"N/A" | b"No" | b"Yes" | b"Data" | b"Addr");
        if position > 0 && !is_value {
            break;
        }
        end = last + 1 + at + word.len();
    }
    end
}

/// Whether a line is a sample without a time.
pub(crate) fn is_timeless(line: &[u8]) -> bool {
    let mut events = words(line).filter(|(_, word)| word.ends_with(b":"));
    head(line).is_none()
        && events.any(|(at, _)| {
            body(&line[at..]).is_ok_and(|body| {
                let has_module = |ip: Symbolized<'_>| ip.names().module.is_some();
                body.ip.is_some_and(has_module) || !body.data_source.is_empty()
            })
        })
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
        assert_eq!(
            head_of(b"a -1 15679.442707: x:"),
            ("a".into(), None, None, None, time)
        );
        // `-F +misc,+tod`.
        let whole = ("[ET_NET 0]".into(), Some(77), Some(78), Some(1), time);
        for line in [
            &b"[ET_NET 0] 77/78 [001] 15679.442707: x:"[..],
            b"[ET_NET 0] 77/78 [001] KUH    15679.442707: x:",
            b"[ET_NET 0] 77/78 [001] 2026-03-04 05:06:07.000001 15679.442707: x:",
            b"[ET_NET 0] 77/78 [001] U 2026-03-04 05:06:07.000001 15679.442707: x:",
        ] {
            assert_eq!(head_of(line), whole);
        }
        // Without a thread before it, the mode is a name.
        assert_eq!(
            head_of(b"U 15679.442707: x:"),
            ("U".into(), None, None, None, time)
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
        let line = b"a 1 1.000000: mem:     7f0000001000          5080021 |OP LOAD|LVL L1 hit|SNP None|TLB L1 hit|LCK No              12           401136 f(int, std::pair<int, char>)+0x4 (/bin/x y)       123456700 4K";
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
            of(b"a 1 1.000000: cpu-clock:            401136 main+0x6 (/bin/x)"),
            (None, None, Some(0x40_1136), "main+0x6 (/bin/x)".into())
        );
        assert_eq!(
            of(b"a 1 1.000000: cpu-clock:  401136 main+0x6 (/bin/x)"),
            (None, None, Some(0x40_1136), "main+0x6 (/bin/x)".into())
        );
        assert_eq!(
            of(b"a 1 1.000000: mem: 7f0000001000 5080021 |OP LOAD|LVL L1 hit|LCK No 12"),
            (Some(0x7f00_0000_1000), Some(12), None, String::new())
        );
        // An address with its symbol, of which the call chain follows.
        assert_eq!(
            of(b"a 1 1.000000: page-faults:     7f0000001000 grid+0x10 (/bin/x)"),
            (Some(0x7f00_0000_1000), None, None, String::new())
        );
        // A number alone behind an address may be a weight or a physical address.
        assert_eq!(
            of(b"a 1 1.000000: page-faults:     7f0000001000       123456700"),
            (Some(0x7f00_0000_1000), None, None, String::new())
        );
    }

    #[test]
    fn what_is_ambiguous_is_refused() {
        let why = |line: &'static [u8]| body(head(line).unwrap().rest).unwrap_err();
        // Blanks that were squeezed: an instruction and a symbol, or a weight and an instruction.
        assert_eq!(why(b"a 1 1.000000: x: 401136 fade2 (/bin/x)"), NOT_ALIGNED);
        assert_eq!(
            why(b"a 1 1.000000: mem: 7f0000001000 5080021 |OP LOAD|LCK No 12 401136 f (/bin/x)"),
            NOT_ALIGNED
        );
        // Numbers behind a data source of which the first is no weight.
        assert_eq!(
            why(b"a 1 1.000000: mem: 7f0000001000 5080021 |OP LOAD|LCK No           401abc       123456700"),
            AMBIGUOUS
        );
        assert_eq!(why(b"a 1 1.000000:   401136 main (/bin/x)"), NO_EVENT);
    }

    #[test]
    fn the_text_of_tracepoints_is_theirs() {
        for line in [
            &b"a 1 1.000000: syscalls:sys_exit_mmap: 0x7e0000002000"[..],
            b"a 1 1.000000: 1 lock:lock_acquire: 0xffff888000001230 read &mm->mmap_sem",
            b"a 1 1.000000: kmem:kfree:     7e0000002000           401abc f (/bin/x)",
        ] {
            let body = body(head(line).unwrap().rest).unwrap();
            assert_eq!((body.address, body.ip), (None, None));
        }
        for event in [
            "cycles:u",
            "cpu/mem-loads,ldlat=30/P",
            "mem:0x7f00:rw",
            "r1a8",
        ] {
            assert!(!is_tracepoint(event.as_bytes()), "{event}");
        }
    }
}
