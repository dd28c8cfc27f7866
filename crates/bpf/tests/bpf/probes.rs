//! Probes at functions: what they cost, and that they count.

use varve_bpf::{Kernel, LoadOptions, PROBE_PROGRAMS};

#[test]
fn probed_functions_of_this_program_are_counted_one_by_one() {
    let kernel = Kernel::load(&LoadOptions {
        operations: true,
        probes: true,
        ..LoadOptions::default()
    })
    .unwrap();
    let mut known = kernel.capabilities().iter();
    let programs = known.find(|c| c.name == PROBE_PROGRAMS).unwrap();
    assert!(programs.available, "{}", programs.detail);
    // Where one call is missing this is an error.
    let cost = kernel.measure_probes().unwrap();
    eprintln!("{cost:?}, many: {}", kernel.attaches_many_probes());
    assert!(cost.operation.0 > 0, "{cost:?}");
    assert!(cost.within <= cost.operation, "{cost:?}");
    assert!(cost.within_steps <= cost.operation_steps, "{cost:?}");
    assert!(kernel.probes().unwrap().rows().is_empty());
    assert!(kernel.probes().unwrap().processes().is_empty());
}
