//! Raw system calls and kernel interfaces, each wrapped once and made safe

mod cgroup;
mod child;
mod clear_refs;
mod clock;
mod file_map;
mod lock;
mod machine;
mod memory;
mod perf;
mod poll;
mod proc;
mod ptrace;
mod servant;
mod signals;
mod userfault;

pub use cgroup::{Cgroup, CgroupError, Frozen, clean_up_after};
pub use child::{Child, Launch, SpawnError, ThpPolicy};
pub use clear_refs::ClearRefs;
pub use clock::{
    Urgent, boot_offset, cpu_time, monotonic_now, realtime_now, thread_priority, tick,
};
pub use file_map::FileMap;
pub use lock::{is_locked, lock, lock_patiently};
pub use machine::{Facts, allowed_cpus, facts, runnable_threads, vmstat};
pub use memory::{own_peak_bytes, release_free_memory};
pub use perf::{PerfEvent, PerfEventKind, PerfPace, PerfRing};
pub use poll::{PidFd, Trigger, Waiter};
pub use proc::{
    MapEntry, ProcStatus, ThreadInfo, children_of, cmdline, exe, is_kernel_thread, is_secure, maps,
    parse_maps, status, threads,
};
pub use ptrace::{Held, Standby, TraceeError, tracer_of};
pub use servant::{Said, ServantSocket, begin_traps, prefer, try_traps};
pub use signals::{Received, Signals};
pub use userfault::{DescriptorSocket, Protector, UserFault, try_write_protection};
