//! Tables of operations: by what was called, what the kernel did within them, by caller, size class and thread.

use varve_alloc::{Faults, Judgement};
use varve_analyse::format;
use varve_model::{Bytes, Duration};

use super::alloc::{estimated, share, with_error};
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// What was called, what the kernel did within it, and where from.
pub(super) fn operations(page: &mut Page, of: &Judgement, rows: usize) {
    by_name(page, of);
    kernel(page, of, rows);
    sites(page, of, rows);
}

/// Blocks by size, and who allocated.
pub(super) fn classes(page: &mut Page, of: &Judgement, rows: usize) {
    size_classes(page, of, rows);
    threads(page, of, rows);
}

/// Why times are missing, where some of those shown are: each reason once, in the order of the rows.
fn missing(page: &mut Page, column: &str, reasons: impl Iterator<Item = Option<&'static str>>) {
    let mut said: Vec<&str> = Vec::new();
    for reason in reasons.flatten() {
        if !said.contains(&reason) {
            said.push(reason);
        }
    }
    if !said.is_empty() {
        let why = format!("{column} is absent where {}", said.join(", or "));
        page.labelled("columns", Tone::Faint, &why);
    }
}

fn by_name(page: &mut Page, of: &Judgement) {
    page.heading(&format!("Operations of {}", of.trace.allocator));
    let mut table = Table::new(&[
        ("called", Align::Name),
        ("count", Align::Right),
        ("bytes", Align::Right),
        ("fresh", Align::Right),
        ("parallel", Align::Right),
        ("failed", Align::Right),
        ("mean", Align::Right),
        ("in all", Align::Right),
    ]);
    for (name, o) in &of.operations {
        let timed = |time: f64| match o.timed {
            0 => ABSENT.to_owned(),
            _ => with_error(time, o.time_error),
        };
        table.row([
            name.clone(),
            format::count(o.count),
            format::bytes(o.requested_bytes),
            o.fresh.map_or_else(
                || ABSENT.to_owned(),
                |fresh| format::percent(fresh, o.count),
            ),
            format::percent(o.parallel, o.count),
            match o.failed {
                0 => ABSENT.to_owned(),
                failed => format::count(failed),
            },
            timed(o.mean_ns),
            timed(o.time_ns.0 as f64),
        ]);
    }
    page.table(&table);
}

fn kernel(page: &mut Page, of: &Judgement, rows: usize) {
    page.heading("In the kernel");
    let f = &of.faults;
    page.labelled(
        "page faults",
        Tone::Plain,
        &format!(
            "{} within operations, {} elsewhere{}",
            format::count(f.inside),
            format::count(f.outside),
            behind(f),
        ),
    );
    given_back(page, of);
    lock_waits(page, of);
    if of.syscalls.is_empty() {
        page.line("No operation made a system call.");
        return;
    }
    let mut table = Table::new(&[
        ("system call", Align::Name),
        ("count", Align::Right),
        ("failed", Align::Right),
        ("in all", Align::Right),
        ("bytes", Align::Right),
        ("of 1,000 operations", Align::Right),
        ("largest part from", Align::Left),
    ]);
    for call in of.syscalls.iter().take(rows) {
        table.row([
            call.name.clone(),
            format::count(call.count),
            match call.failed {
                0 => ABSENT.to_owned(),
                failed => format::count(failed),
            },
            format::duration(call.time_ns),
            match call.bytes {
                Bytes(0) => ABSENT.to_owned(),
                bytes => format::bytes(bytes),
            },
            format!("{:.3}", call.per_operation * 1000.0),
            call.sites
                .first()
                .map_or_else(String::new, |(site, _)| super::page::clip_name(site, 40)),
        ]);
    }
    page.table(&table);
    page.more(of.syscalls.len(), rows, 0);
}

/// First touches of the allocator's memory outside of operations, as the end of a sentence.
fn behind(of: &Faults) -> String {
    let Some(touches) = of.behind else {
        return String::new();
    };
    let time = of.behind_share.map_or_else(String::new, |of| {
        format!(" ({} of the CPU time)", share(Some(of)))
    });
    let by_kernel = match of.behind_by_kernel {
        None | Some(0) => String::new(),
        Some(some) => format!(
            "; {} of them by the kernel, as in read: their time is not known",
            format::count(some)
        ),
    };
    format!(
        ", {} of these first touches of memory that the allocator had mapped{time}{by_kernel}",
        format::count(touches)
    )
}

/// What operations gave back to the kernel, and what it costs that it came again.
fn given_back(page: &mut Page, of: &Judgement) {
    let given = &of.given_back;
    let bytes = match (given.bytes, &given.unknown) {
        (Bytes(0), None) => return,
        // Of these it is not known what was there.
        (Bytes(0), Some(_)) => format!("up to {}", format::bytes(given.address_bytes)),
        (bytes, _) => format::bytes(bytes),
    };
    let cost = given.again.map_or_else(String::new, |of| {
        format!(
            ", whose first touches by the program itself, outside of operations, took {} of the CPU time",
            share(Some(of))
        )
    });
    let came = match given.again_bytes {
        Bytes(0) => String::new(),
        bytes => format!(
            "; {} of that came again at least{cost}",
            format::bytes(bytes)
        ),
    };
    let unknown = given.unknown.as_ref().map_or_else(String::new, |touches| {
        format!(
            "; what page faults take in all as it comes again is not known, as {}",
            touches.why
        )
    });
    page.labelled(
        "given back",
        Tone::Plain,
        &format!("{bytes} to the kernel by operations{came}{unknown}"),
    );
}

fn lock_waits(page: &mut Page, of: &Judgement) {
    let Some(lock) = &of.mmap_lock else {
        return;
    };
    let inside = match lock.waits {
        0 => "no operation waited for it".to_owned(),
        waits => format!(
            "operations waited for it {}, {} in all{}",
            format::counted(waits, "time"),
            format::duration(lock.time_ns),
            match lock.spun_ns {
                Duration(0) => String::new(),
                spun => format!(" ({} of it without sleeping)", format::duration(spun)),
            }
        ),
    };
    let outside = match lock.outside {
        0 => String::new(),
        outside => format!(
            "; the program elsewhere {}, {} in all",
            format::counted(outside, "time"),
            format::duration(lock.outside_ns)
        ),
    };
    let others = match lock.others_ns {
        Duration(0) => String::new(),
        others => format!(
            "; {} more while other processes held it, such as a recorder",
            format::duration(others)
        ),
    };
    page.labelled(
        "mmap_lock",
        Tone::Plain,
        &format!("{inside}{outside}{others}"),
    );
}

fn sites(page: &mut Page, of: &Judgement, rows: usize) {
    page.heading("Callers");
    let mut table = Table::new(&[
        ("caller", Align::Name),
        ("count", Align::Right),
        ("asked for", Align::Right),
        ("given back", Align::Right),
        ("in all", Align::Right),
        ("CPU time", Align::Right),
        ("system calls", Align::Right),
        ("faults", Align::Right),
    ]);
    for site in of.sites.iter().take(rows) {
        table.row([
            site.label.clone(),
            format::count(site.count),
            format::bytes(site.requested_bytes),
            format::bytes(site.freed_bytes),
            estimated((site.time_ns, site.time_error)),
            estimated((site.cpu_ns, site.cpu_error)),
            format::count(site.syscalls),
            format::count(site.faults),
        ]);
    }
    page.table(&table);
    page.more(of.sites.len(), rows, 0);
    missing(
        page,
        "in all",
        of.sites.iter().take(rows).map(|s| s.time_unknown),
    );
}

/// What the column of that name has.
const REALLOCATED: &str = "reallocated are blocks that realloc took, and what it gave for them is allocated in the class of its new size: blocks that were neither freed nor reallocated live";

fn size_classes(page: &mut Page, of: &Judgement, rows: usize) {
    let mut classes: Vec<_> = of.classes.iter().filter(|c| c.count > 0).collect();
    classes.sort_by_key(|c| std::cmp::Reverse((c.usable_bytes, c.requested_bytes)));
    let shown = rows.min(classes.len());
    let all = classes.len();
    classes.truncate(shown);
    classes.sort_by_key(|c| c.bytes);
    page.heading("Size classes");
    let mut table = Table::new(&[
        ("blocks up to", Align::Name),
        ("allocated", Align::Right),
        ("freed", Align::Right),
        ("reallocated", Align::Right),
        ("asked for", Align::Right),
        ("usable", Align::Right),
        ("lost", Align::Right),
        ("time", Align::Right),
    ]);
    let reasons: Vec<_> = classes.iter().map(|c| c.time_unknown).collect();
    let has_reallocated = classes.iter().any(|c| c.reallocated > 0);
    for class in classes {
        table.row([
            match class.bytes.0 {
                u64::MAX => "(larger)".to_owned(),
                _ => format::bytes(class.bytes),
            },
            format::count(class.count),
            format::count(class.freed),
            format::count(class.reallocated),
            format::bytes(class.requested_bytes),
            class
                .usable_bytes
                .map_or_else(|| ABSENT.to_owned(), format::bytes),
            class.usable_bytes.map_or_else(
                || ABSENT.to_owned(),
                |usable| {
                    let lost = usable.0.saturating_sub(class.requested_bytes.0);
                    format::percent(lost, usable.0)
                },
            ),
            estimated((class.time_ns, class.time_error)),
        ]);
    }
    page.table(&table);
    page.more(all, shown, 0);
    if has_reallocated {
        page.labelled("columns", Tone::Faint, REALLOCATED);
    }
    missing(page, "time", reasons.into_iter());
}

fn threads(page: &mut Page, of: &Judgement, rows: usize) {
    if of.threads.len() < 2 {
        return;
    }
    page.heading("Threads");
    let mut table = Table::new(&[
        ("thread", Align::Name),
        ("count", Align::Right),
        ("asked for", Align::Right),
        ("given back", Align::Right),
        ("in all", Align::Right),
    ]);
    for thread in of.threads.iter().take(rows) {
        table.row([
            format!("{} {}", thread.tid.0, thread.name),
            format::count(thread.count),
            format::bytes(thread.requested_bytes),
            format::bytes(thread.freed_bytes),
            estimated((thread.time_ns, thread.time_error)),
        ]);
    }
    page.table(&table);
    page.more(of.threads.len(), rows, 0);
    missing(
        page,
        "in all",
        of.threads.iter().take(rows).map(|t| t.time_unknown),
    );
}
