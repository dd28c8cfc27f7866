//! What the kernel offers: BPF programs, samples and userfaultfd.

use varve_bpf::{Kernel, LoadOptions, OPERATION_PROGRAMS, PROBE_PROGRAMS};

use super::{Brief, Check, Standing};

pub(super) fn programs() -> Vec<Check> {
    let all = LoadOptions {
        waits: true,
        harvest: true,
        operations: true,
        probes: true,
        ..LoadOptions::default()
    };
    match Kernel::load(&all) {
        Ok(mut kernel) => {
            let clock = clock_samples(&mut kernel);
            let operations = operations(&kernel);
            let probes = probes(&kernel);
            let known = kernel.capabilities().iter();
            known
                .filter(|c| ![OPERATION_PROGRAMS, PROBE_PROGRAMS].contains(&c.name))
                .map(|c| {
                    let lacking = match (c.required, c.promised) {
                        (true, _) => Standing::Required,
                        (false, true) => Standing::Promised,
                        (false, false) => Standing::Missing,
                    };
                    let (detail, hint) = split_hint(&c.detail);
                    Check {
                        name: c.name.to_owned(),
                        purpose: c.purpose.to_owned(),
                        standing: if c.available {
                            Standing::Available
                        } else {
                            lacking
                        },
                        detail,
                        hint,
                        brief: match c.is_part {
                            true => Brief::Never,
                            false => Brief::Missing,
                        },
                    }
                })
                .chain([clock, hardware_samples(), operations, probes])
                .collect()
        }
        Err(e) => {
            let (detail, hint) = split_hint(&e.to_string());
            vec![Check {
                name: "BPF programs".into(),
                purpose: "read page tables and see pages vanish".into(),
                standing: Standing::Required,
                detail,
                hint,
                brief: Brief::Missing,
            }]
        }
    }
}

/// Tried for a moment: every system call of the machine is slower meanwhile.
fn operations(kernel: &Kernel) -> Check {
    let mut known = kernel.capabilities().iter();
    let refused = known.find(|c| c.name == OPERATION_PROGRAMS && !c.available);
    let tried = match refused {
        Some(programs) => Err(programs.detail.clone()),
        None => kernel.operations(1).map(drop).map_err(|e| e.to_string()),
    };
    Check::new(
        OPERATION_PROGRAMS,
        "which system calls, page faults and CPU time allocator operations take (varve alloc record)",
        tried
            .map(|()| "programs see every system call while operations are recorded, and at no other time".into())
            .map_err(|why| {
                (
                    why,
                    "the kernel needs tracepoints of system calls and page faults (CONFIG_FTRACE_SYSCALLS=y) and CONFIG_PERF_EVENTS=y; operations are counted and timed without them",
                )
            }),
        Standing::Missing,
    )
    .feature("allocator operations (varve alloc record)")
}

/// Tried on functions of this program, for some milliseconds.
fn probes(kernel: &Kernel) -> Check {
    let mut known = kernel.capabilities().iter();
    let refused = known.find(|c| c.name == PROBE_PROGRAMS && !c.available);
    let tried = match refused {
        Some(programs) => Err(programs.detail.clone()),
        None => kernel.measure_probes().map_err(|e| e.to_string()),
    };
    let said = tried.map(|cost| {
        let us = |of: varve_model::Duration| of.0 as f64 / 1000.0;
        let confined = match cost.spares_confined {
            true => "",
            false => "; this kernel kills programs that confine themselves (seccomp) at the end of a probed function, and they are not probed",
        };
        let links = match kernel.attaches_many_probes() {
            true => "one link for all functions of a file",
            false => "a perf event for each function",
        };
        format!(
            "{links}; a probed operation takes {:.1} µs longer, {:.1} µs where the processor has to step over an instruction{confined}",
            us(cost.operation),
            us(cost.operation_steps)
        )
    });
    Check::new(
        PROBE_PROGRAMS,
        "allocator operations of processes that run already, and of allocators within executables (varve alloc record -p)",
        said.map_err(|why| {
            (
                why,
                "the kernel needs CONFIG_UPROBE_EVENTS=y and CONFIG_BPF_EVENTS=y; `varve alloc record -- COMMAND` does without",
            )
        }),
        Standing::Missing,
    )
    .feature("allocator operations of running processes (varve alloc record -p)")
}

fn clock_samples(kernel: &mut Kernel) -> Check {
    let tried = kernel.sample(1);
    Check::new(
        "cpu-clock samples",
        "the address, line and thread that time goes to, on any machine (--samples RATE)",
        tried
            .map(|_| "a timer of each CPU runs the program".into())
            .map_err(|e| {
                (
                    e.to_string(),
                    "the kernel needs CONFIG_PERF_EVENTS=y; it takes root or CAP_PERFMON",
                )
            }),
        Standing::Missing,
    )
    .feature("samples of where time goes")
}

/// Where the kernel says that the processor samples accesses by itself.
fn hardware_samples() -> Check {
    Check::note(
        "hardware samples",
        "latency and memory level of single accesses (--samples auto)",
        crate::probes::samples::hardware::standing(),
    )
}

/// Takes a hint in parentheses off a sentence.
pub(crate) fn split_hint(text: &str) -> (String, Option<String>) {
    match text.split_once(" (hint: ") {
        Some((what, hint)) => (what.to_owned(), Some(hint.trim_end_matches(')').to_owned())),
        None => (text.to_owned(), None),
    }
}

pub(super) fn write_protection() -> Check {
    Check::new(
        "write protection",
        "distinguishes writes from reads where there are no soft-dirty bits (--writes on)",
        varve_sys::try_write_protection()
            .map(|()| "userfaultfd protects pages and lets writes go on".into())
            .map_err(|e| {
                (
                    e.to_string(),
                    "the kernel needs CONFIG_USERFAULTFD=y, CONFIG_PROC_PAGE_MONITOR=y and PAGEMAP_SCAN",
                )
            }),
        Standing::Missing,
    )
    .feature("writes apart from reads (--writes on)")
}

pub(super) fn trapping() -> Check {
    Check::new(
        "userfaultfd moves",
        "traps the first access to each page (--backend fault)",
        crate::probes::traps::can_trap()
            .map(|()| "userfaultfd moves pages away and back".into())
            .map_err(|why| (why, "Linux 6.8 or later has it; it takes root, or CAP_SYS_PTRACE and CAP_DAC_OVERRIDE")),
        Standing::Missing,
    )
    .feature("every first access trapped (--backend fault)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_taken_off() {
        assert_eq!(
            split_hint("no (hint: do)"),
            ("no".into(), Some("do".into()))
        );
        assert_eq!(split_hint("no"), ("no".into(), None));
    }
}
