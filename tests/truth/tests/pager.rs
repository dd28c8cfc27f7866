//! The recorder against the C++ library's pager, which counts by itself which pages a key-value store asks for: both
//! must tell the same pages and the same faults.

use std::process::ExitCode;
use std::time::Duration;

use varve_model::{Page, Time};
use varve_trace::tables::FaultRow;
use varve_truth::{
    Case, Outcome, PageSet, Plan, Problem, Recorded, Span, is_emulated, make_workloads, record,
    run_suite,
};

/// Between paging out, the queries and the end, so that no interval holds two of them.
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
    // The interval before the queries, where it began after the store had been paged out.
    let rest = REST.as_nanos() as u64 * scale;
    let calm = |i: &usize| recorded.touches.intervals[*i].0.from.0 + rest > account.queries.from.0;
    let before = queries
        .start
        .checked_sub(1)
        .filter(calm)
        .map_or(0..0, |i| i..i + 1);
    let touched = |intervals| {
        in_region(
            &recorded.touches.union(intervals, pid).pages,
            &account.paged,
        )
    };
    let (pages, resting) = (touched(queries), touched(before));
    let (faults, faulted) = faults(&recorded, &account)?;
    let complete = recorded.trace.manifest.completeness.complete;

    let line = format!(
        "the pager read {} pages at {} faults, {:.2} an operation; the trace has {} pages and {faults} faults on {} pages; \
         {} touched while the store rested",
        account.page_reads,
        account.faults,
        account.page_reads as f64 / account.operations as f64,
        pages.len(),
        faulted.len(),
        resting.len(),
    );
    let same_pages = pages == faulted
        && match local {
            Local::Enough => pages.len() == account.page_reads,
            // Pages come more than once.
            Local::Short => pages.len() < account.page_reads,
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
        Outcome::Fail(line, recorded.trace.manifest.notes.clone())
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
