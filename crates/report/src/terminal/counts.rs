//! The sections about counted accesses.

use varve_analyse::{Analysis, CountUse, ExactUse, format};

use super::objects::HOTTEST;
use super::page::{Page, Tone};
use super::samples::{ROWS, shown};
use super::table::{Align, Table};
use super::threads::THREADS;
use crate::text::grouped;

pub(super) fn write(page: &mut Page, a: &Analysis) {
    match (&a.counts, &a.exact) {
        (_, Some(exact)) => accesses(page, exact),
        (Some(found), None) => counts(page, found),
        (None, None) => (),
    }
}

/// What was counted, where every access was.
fn accesses(page: &mut Page, counted: &ExactUse) {
    page.heading("Counted accesses");
    page.line(&format!(
        "{} reads, {} writes",
        format::count(counted.all.reads),
        format::count(counted.all.writes)
    ));
    sharing(page, counted);
    objects(page, counted);
    threads(page, counted);
}

fn sharing(page: &mut Page, counted: &ExactUse) {
    let s = &counted.sharing;
    for (pages, what) in [
        (s.private, "by one thread only"),
        (s.read_only, "read by several threads, written by none"),
        (s.one_writer, "by several threads, written by one"),
        (s.many_writers, "written by several threads"),
    ] {
        if pages.0 > 0 {
            page.line(&format!("  {} {what}", format::pages_size(pages)));
        }
    }
}

fn objects(page: &mut Page, counted: &ExactUse) {
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("reads", Align::Right),
        ("writes", Align::Right),
        ("private", Align::Right),
        ("shared", Align::Right),
        ("first by", Align::Right),
        ("threads", Align::Right),
        ("write it", Align::Right),
    ]);
    for o in counted.objects.iter().take(page.rows(HOTTEST)) {
        let s = &o.sharing;
        let shared = varve_model::Pages(s.read_only.0 + s.one_writer.0 + s.many_writers.0);
        table.row([
            grouped(&o.name, o.objects),
            format::count(o.accesses.reads),
            format::count(o.accesses.writes),
            format::pages_size(s.private),
            format::pages_size(shared),
            o.first_tid.map_or_else(String::new, |t| t.to_string()),
            o.threads.len().to_string(),
            (o.threads.len() - o.never_written_by.len()).to_string(),
        ]);
    }
    page.table(&table);
    page.wrapped(
        "counts are of accesses, not of time; one over the end of a page counts on both pages, and a page with several \
         objects in each of them: what the objects have together may be more than all accesses",
        Tone::Faint,
    );
}

fn threads(page: &mut Page, counted: &ExactUse) {
    if counted.threads.len() < 2 {
        return;
    }
    let mut table = Table::new(&[
        ("thread", Align::Left),
        ("reads", Align::Right),
        ("writes", Align::Right),
        ("touched", Align::Right),
        ("written", Align::Right),
        ("first by it", Align::Right),
    ]);
    for t in counted.threads.iter().take(page.rows(THREADS)) {
        table.row([
            t.tid.to_string(),
            format::count(t.accesses.reads),
            format::count(t.accesses.writes),
            format::pages_size(t.pages),
            format::pages_size(t.written_pages),
            format::pages_size(t.first_pages),
        ]);
    }
    page.table(&table);
}

fn counts(page: &mut Page, c: &CountUse) {
    page.heading("Accesses, counted");
    page.wrapped(
        &format!(
            "{} reads, {} writes, {} of both to pages of no known object",
            format::count(c.all.reads),
            format::count(c.all.writes),
            format::percent(c.unowned.sum(), c.all.sum())
        ),
        Tone::Plain,
    );
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("reads", Align::Right),
        ("writes", Align::Right),
        ("share", Align::Right),
        ("threads", Align::Right),
        ("most by one", Align::Right),
    ]);
    for o in c.objects.iter().take(page.rows(ROWS)) {
        let most = o.threads.first().map_or(0, |t| t.accesses.sum());
        table.row([
            o.name.clone(),
            format::count(o.accesses.reads),
            format::count(o.accesses.writes),
            format::percent(o.accesses.sum(), c.all.sum()),
            o.threads.len().to_string(),
            format::percent(most, o.accesses.sum()),
        ]);
    }
    shown(page, "Accesses by object", &table, c.objects.len(), 0);
    let mut table = Table::new(&[
        ("thread", Align::Name),
        ("reads", Align::Right),
        ("writes", Align::Right),
        ("share", Align::Right),
    ]);
    for t in c.threads.iter().take(page.rows(ROWS)) {
        table.row([
            t.tid
                .map_or("(not known)".to_owned(), |tid| tid.to_string()),
            format::count(t.accesses.reads),
            format::count(t.accesses.writes),
            format::percent(t.accesses.sum(), c.all.sum()),
        ]);
    }
    shown(page, "Accesses by thread", &table, c.threads.len(), 0);
}
