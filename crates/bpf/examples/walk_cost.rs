//! What a walk costs per page: `cargo run --release -p varve-bpf --example walk_cost -- [MIB]`
//!
//! A child touches a private mapping of small pages. It is walked as it is, after its bits were
//! cleared (so that the flags of every page must be read), and so again without the flag check.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use varve_bpf::{Kernel, LoadOptions, PageFlags};
use varve_model::Pid;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("--child") {
        return child(args.next().unwrap_or_default().parse()?);
    }
    let mib: usize = first.map_or(Ok(1024), |text| text.parse())?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--child", &mib.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let begin = Instant::now();
    let mut kernel = Kernel::load(&LoadOptions::default())?;
    println!("load: {:?}", begin.elapsed());
    for row in kernel.capabilities() {
        let sign = if row.available { "yes" } else { "no " };
        println!("  {sign} {}: {}", row.name, row.detail);
    }
    let pid = Pid(child.id());
    for (name, clear, flags) in [
        ("touched, flags checked", false, PageFlags::Check),
        ("touched, flags ignored", false, PageFlags::Ignore),
        ("cold, flags ignored", true, PageFlags::Ignore),
        ("cold, flags checked", true, PageFlags::Check),
    ] {
        if clear {
            let begin = Instant::now();
            std::fs::write(format!("/proc/{pid}/clear_refs"), "1")?;
            println!("clear: {:?}", begin.elapsed());
        }
        kernel.set_page_flags(flags)?;
        let mut best = f64::INFINITY;
        let mut stats = None;
        let mut touched = 0;
        for _ in 0..10 {
            touched = 0;
            let begin = Instant::now();
            let walk = kernel.walk(pid, &mut |region| touched += region.touched_count())?;
            best = best.min(begin.elapsed().as_nanos() as f64 / walk.present_pages as f64);
            stats = Some(walk);
        }
        println!("{name}: {best:.2} ns/page, {touched} touched, {stats:?}");
    }
    println!("dropped: {:?}", kernel.dropped()?);
    drop(child.stdin.take());
    child.wait()?;
    Ok(())
}

fn child(mib: usize) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = mib << 20;
    let mut memory: Vec<u8> = Vec::with_capacity(bytes);
    // SAFETY: advice on the pages of an allocation of our own
    unsafe {
        libc::madvise(
            memory
                .as_mut_ptr()
                .wrapping_add(4096 - memory.as_ptr() as usize % 4096)
                .cast(),
            bytes - 4096,
            libc::MADV_NOHUGEPAGE,
        )
    };
    memory.resize(bytes, 1);
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    assert_eq!(memory[bytes / 2], 1);
    Ok(())
}
