//! The type information of the running kernel (BTF), as far as it says what the kernel has

use std::path::Path;

use libbpf_rs::btf::{Btf, BtfType, types};

use crate::BpfError;

const FILE: &str = "/sys/kernel/btf/vmlinux";

/// The kernel's types. There are some 150,000 of them, and libbpf checks each as it reads them: they are read once for all questions.
pub(crate) struct KernelTypes(Option<Btf<'static>>);

impl KernelTypes {
    /// Those of this kernel; where they cannot be understood, none is there
    ///
    /// # Errors
    /// [`BpfError::NoBtf`] where the kernel has no type information.
    pub(crate) fn read() -> Result<KernelTypes, BpfError> {
        if !Path::new(FILE).exists() {
            return Err(BpfError::NoBtf);
        }
        Ok(KernelTypes(Btf::from_vmlinux().ok()))
    }

    /// Whether nothing is known of them
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn get(&self, name: &str) -> Option<BtfType<'_>> {
        self.0.as_ref()?.type_by_name(name)
    }

    /// Whether there is a type of this name
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Whether this kernel has a tracepoint
    pub(crate) fn has_tracepoint(&self, name: &str) -> bool {
        self.has(&format!("btf_trace_{name}"))
    }

    /// Whether `sched_process_exit` runs before a process lets its memory go: it was moved there, and
    /// given one more argument, in Linux 6.16
    pub(crate) fn exit_comes_before_memory_goes(&self) -> bool {
        let mut kind = self.get("btf_trace_sched_process_exit");
        for _ in 0..4 {
            let Some(current) = kind else { return false };
            if let Ok(function) = types::FuncProto::try_from(current) {
                return function.len() >= 3;
            }
            kind = current.next_type();
        }
        false
    }
}
