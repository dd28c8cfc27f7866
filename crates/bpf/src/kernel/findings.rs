//! What calibration found, for `varve doctor`

use crate::Capability;
use crate::abi;
use crate::calibrate::Found;

/// What calibration found, as rows of `varve doctor`
pub(super) fn describe(found: &Found, exit_has_memory: bool) -> Vec<Capability> {
    let settings = &found.settings;
    let row = |name, purpose, available, detail: String| Capability {
        name,
        purpose,
        available,
        required: false,
        // What a kernel does not have nobody can use; what cannot be found is missed
        promised: name != "soft-dirty bits" && found.vmemmap_problem.is_some(),
        detail,
        is_part: false,
    };
    let flag = |bit| found.features & bit != 0 && found.vmemmap_problem.is_none();
    let why = |bit: u32, what: &str| match &found.vmemmap_problem {
        Some(problem) => problem.clone(),
        None if found.features & bit == 0 => format!("this kernel has no {what}"),
        None => "found".into(),
    };
    vec![
        row(
            "page tables",
            "where physical memory is mapped",
            true,
            format!("{} levels", settings.levels),
        ),
        row(
            "PG_young",
            "pages whose accessed bit DAMON or idle-page tracking took",
            flag(abi::FEATURE_YOUNG),
            why(
                abi::FEATURE_YOUNG,
                "PG_young flag, so nobody can take bits and leave it",
            ),
        ),
        row(
            "PG_referenced",
            "pages that the kernel touched on behalf of the program (O_DIRECT and its kin)",
            flag(abi::FEATURE_REFERENCED),
            why(
                abi::FEATURE_REFERENCED,
                "PG_referenced flag in its type information",
            ),
        ),
        row(
            "pinned pages",
            "pages that a device may touch at any time (registered buffers)",
            flag(abi::FEATURE_COMPOUND | abi::FEATURE_PINCOUNT),
            why(
                abi::FEATURE_PINCOUNT,
                "pin count of large pages in its type information",
            ),
        ),
        row(
            "hugetlb pages",
            "distinguishing hugetlb from transparent huge pages",
            flag(abi::FEATURE_HUGETLB),
            why(
                abi::FEATURE_HUGETLB,
                "mark of hugetlb pages in its type information",
            ),
        ),
        row(
            "soft-dirty bits",
            "distinguishing writes from reads",
            found.soft_dirty,
            if found.soft_dirty {
                "found".into()
            } else {
                "this kernel has no soft-dirty bits (hint: `--writes on` distinguishes them too, at the cost of a fault per first write; kernels with CONFIG_MEM_SOFT_DIRTY do so for nothing)".into()
            },
        ),
        row(
            "exit hook",
            "reads the bits of a process that ends",
            true,
            if exit_has_memory {
                "sched_process_exit sees the memory".into()
            } else {
                "the last thread to reach its end reads the memory".into()
            },
        ),
    ]
}
