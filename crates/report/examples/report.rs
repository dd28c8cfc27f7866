//! Reports a trace: `cargo run --release -p varve-report --example report -- TRACE [PNG]`

use std::env;
use std::path::Path;
use std::time::Instant;

use varve_analyse::{AnalyseOptions, Section, analyse};
use varve_report::terminal::TerminalOptions;
use varve_report::{png, terminal};
use varve_trace::Trace;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let folder = args.next().ok_or("give a trace folder")?;
    let began = Instant::now();
    let trace = Trace::open(Path::new(&folder))?;
    let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ())?;
    print!(
        "{}",
        terminal::render(
            &analysis,
            trace.folder(),
            &TerminalOptions {
                sections: Section::ALL[1..].to_vec(),
                width: 100,
                color: false,
            }
        )
    );
    eprintln!(
        "analysed and reported in {:.2} s",
        began.elapsed().as_secs_f64()
    );
    if let Some(picture) = args.next() {
        png::render(
            &trace,
            &analysis,
            std::io::BufWriter::new(std::fs::File::create(&picture)?),
            &Default::default(),
            &mut |_| (),
        )?;
        eprintln!("with the picture in {:.2} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}
