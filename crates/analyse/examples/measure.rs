//! Analyses a trace and says how long that took: `cargo run --release -p varve-analyse --example measure -- TRACE`

use std::env;
use std::path::Path;
use std::time::Instant;

use varve_analyse::{AnalyseOptions, analyse, format};
use varve_trace::Trace;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = env::args().nth(1).ok_or("give a trace folder")?;
    let began = Instant::now();
    let trace = Trace::open(Path::new(&folder))?;
    let found = analyse(&trace, &AnalyseOptions::default(), &mut |_| ())?;
    println!(
        "{} rows, {} intervals, {} pages, {} page touches, {} objects in {:.2} s",
        format::count(found.trace.touch_rows.or_zero()),
        format::count(found.trace.intervals.or_zero()),
        format::count(found.footprint.touched_pages.or_zero().0),
        format::count(found.footprint.page_touches.or_zero()),
        format::count(found.objects.len() as u64),
        began.elapsed().as_secs_f64()
    );
    for finding in &found.findings {
        println!("{}: {}\n  {}", finding.id, finding.title, finding.evidence);
    }
    Ok(())
}
