//! The recorder against the C++ library's pager, which counts by itself which pages a key-value store asks for: both
//! must tell the same pages and the same faults.

use std::process::ExitCode;
use std::time::Duration;

use varve_model::{Page, Time};
use varve_trace::tables::FaultRow;
use varve_truth::{
    Case, Outcome, PageSet, Plan, Problem, Recorded, Span, describe, is_emulated, make_workloads,
    record, run_suite,
};

/// Between paging out, the queries and the end, so that few intervals hold two of them: of those less is demanded.
const REST: Duration = Duration::from_millis(300);

/// Whether local memory holds everything, so that each page is read at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    Enough,
    Short,
}

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let case = |structure: &'static str, placement: &'static str, local: Local| {
        Case::new(format!("{structure} {placement} {local:?}"), move || {
            run(structure, placement, local)
        })
    };
    run_suite(
        "pager",
        &[
            case("btree", "dfs", Local::Enough),
            case("btree", "dfs", Local::Short),
            case("btree", "auto", Local::Enough),
            case("skiplist", "page", Local::Enough),
            case("skiplist", "page", Local::Short),
        ],
    )
}

/// What the store prints of its queries.
struct Account {
    page_reads: u64,
    faults: u64,
    operations: u64,
    /// From the end of paging out to what comes after the queries: the store does nothing else in it.
    calm: Span,
    queries: Span,
    paged: std::ops::Range<u64>,
}

impl Account {
    fn read(output: &str) -> Result<Account, Problem> {
        let number = |name: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse::<u64>().ok())
                .ok_or_else(|| {
                    Problem::Other(format!("the store prints no `{name}`, only:\n{output}"))
                })
        };
        Ok(Account {
            page_reads: number("page_reads ")?,
            faults: number("faults ")?,
            operations: number("operations ")?,
            calm: Span {
                from: Time(number("paged_out_ns ")?),
                to: Time(number("rested_ns ")?),
            },
            queries: Span {
                from: Time(number("query_began_ns ")?),
                to: Time(number("query_ended_ns ")?),
            },
            paged: number("paged_start ")? >> 12..number("paged_end ")? >> 12,
        })
    }
}

fn run(structure: &str, placement: &str, local: Local) -> Result<Outcome, Problem> {
    let scale = if is_emulated() { 5 } else { 1 };
    let mut plan = Plan::workload("varve-kvs", Duration::from_millis(50));
    let percent = if local == Local::Enough { "200" } else { "20" };
    plan.arguments = [
        "--pager",
        "real",
        "--structure",
        structure,
        "--placement",
        placement,
    ]
    .into_iter()
    .chain(["--local", percent])
    .map(Into::into)
    .collect();
    let numbers = [
        ("--elements", 50_000 / scale),
        ("--operations", 2_000 / scale),
        ("--rest", REST.as_millis() as u64 * scale),
    ];
    for (name, number) in numbers {
        plan.arguments
            .extend([name.into(), number.to_string().into()]);
    }
    plan.options = ["--samples", "off", "--thp", "never"]
        .map(Into::into)
        .into();
    let mut recorded = record(&plan)?;
    let output = recorded.finished.require(0)?;
    let account = Account::read(&output.stdout)?;
    recorded.finished = output;

    let pid = varve_model::Pid(recorded.trace.manifest.target.pid);
    let queries = recorded.touches.around(account.queries);
    // What else an interval has in it that began before the store was paged out, as on a busy machine, is not to be told apart. What
    // went unseen before an interval may stand in it, too.
    let calm = |i: &usize| {
        let began = |i: usize| recorded.touches.intervals[i].0.from;
        let is_after = i
            .checked_sub(1)
            .is_some_and(|before| began(before) >= account.calm.from);
        is_after && recorded.touches.intervals[*i].0.to <= account.calm.to
    };
    let before = queries.start.checked_sub(1).filter(calm);
    let touched = |intervals: &mut dyn Iterator<Item = usize>| {
        let layers = intervals.map(|i| recorded.touches.union(i..i + 1, pid).pages);
        let all = layers.fold(PageSet::default(), |all, pages| all.union(&pages));
        in_region(&all, &account.paged)
    };
    let pages = touched(&mut queries.clone());
    let alone = touched(&mut queries.filter(calm));
    let resting = touched(&mut before.into_iter());
    let (faults, faulted) = faults(&recorded, &account)?;
    let complete = recorded.trace.manifest.completeness.complete;

    let line = format!(
        "the pager read {} pages at {} faults, {:.2} an operation; the trace has {} pages, {} of them in intervals of queries alone, and {faults} faults on {} pages; \
         {} touched while the store rested",
        account.page_reads,
        account.faults,
        account.page_reads as f64 / account.operations as f64,
        pages.len(),
        alone.len(),
        faulted.len(),
        resting.len(),
    );
    let beyond = |some: &PageSet, all: &PageSet| -> PageSet {
        some.iter().filter(|page| !all.contains(*page)).collect()
    };
    let (missed, extra) = (beyond(&faulted, &pages), beyond(&alone, &faulted));
    let same_pages = missed.len() + extra.len() == 0
        && match local {
            Local::Enough => faulted.len() == account.page_reads,
            // Pages come more than once.
            Local::Short => faulted.len() < account.page_reads,
        };
    // Where soft-dirty bits tell writes, each interval's first write to a page that is there is a fault too.
    let same_faults = match recorded.trace.manifest.features.writes.as_deref() {
        Some("soft-dirty") => faults >= account.faults,
        _ => faults == account.faults,
    };
    let holds = complete && same_pages && same_faults && resting.is_empty();
    Ok(if holds && account.page_reads > 50 {
        Outcome::Pass(line)
    } else {
        let mut notes = vec![format!(
            "losses: {:?}; faulted and not touched: {}; touched among queries and not faulted: {}",
            recorded.trace.manifest.losses,
            describe(&missed, 8),
            describe(&extra, 8),
        )];
        notes.extend(recorded.trace.manifest.notes.iter().cloned());
        Outcome::Fail(line, notes)
    })
}

fn in_region(pages: &PageSet, region: &std::ops::Range<u64>) -> PageSet {
    pages.iter().filter(|p| region.contains(&p.0)).collect()
}

/// The faults on paged memory within the queries: how many, and on which pages.
fn faults(recorded: &Recorded, account: &Account) -> Result<(u64, PageSet), Problem> {
    let mut pages = Vec::new();
    for row in recorded.trace.rows::<FaultRow>()? {
        let page = Page(row.address.0 >> 12);
        let within = (account.queries.from..=account.queries.to).contains(&row.time_ns);
        if within && account.paged.contains(&page.0) {
            pages.push(page);
        }
    }
    Ok((pages.len() as u64, pages.into_iter().collect()))
}
