//! Raw system calls and kernel interfaces, each wrapped once and made safe

mod breaks;
mod cgroup;
mod child;
mod clear_refs;
mod clock;
mod cooling;
mod directory;
mod handler;
mod homes;
mod lazy_file;
mod limited;
mod limits;
mod lock;
mod machine;
mod measured;
mod memory;
mod mounts;
mod moved;
mod numa;
mod paging;
mod perf;
mod poll;
mod proc;
mod ptrace;
mod regular;
pub mod rights;
mod root_folder;
mod signals;
mod stops;
mod tiering;
mod usage;
mod userfault;
mod zram;

pub use breaks::Breaks;
pub use cgroup::{
    Cgroup, CgroupError, CgroupMark, Freezer, Frozen, cgroup_mark, dissolve, mark_cgroup, thaw,
};
pub use child::{Child, Launch, SpawnError, ThpPolicy, detach};
pub use clear_refs::ClearRefs;
pub use clock::{
    Patient, Urgent, boot_offset, cpu_time, cpu_time_of, idle_time, let_wakers_go_on,
    monotonic_now, realtime_now, system_call_time, thread_cpu_time, thread_priority, tick,
};
pub use cooling::{Cooling, resident_bytes};
pub use directory::{Directory, Identity, Kind, effective_user, reopen, unnamed_file};
pub use handler::{
    HandlerSocket, Said, begin_traps, has_limited_memory, shares_memory, try_traps, verify_handler,
};
pub use homes::Shadow;
pub use lazy_file::LazyFile;
pub use limited::{LimitError, LimitKind, LimitPlace, LimitedGroup, dissolve_limited};
pub use limits::{file_limit, has_at_most_open, live_with_limits, raise_file_limit};
pub use lock::{is_locked, lock, lock_patiently, locker, try_lock};
pub use machine::{Facts, allowed_cpus, available_memory, facts, runnable_threads, vmstat};
pub use measured::{
    ChildrenUsed, Used, children_used, wait_measured, wait_measured_while, with_output,
    without_output,
};
pub use memory::{fault_time, first_access_time, own_peak_bytes, release_free_memory};
pub use mounts::{is_on_own_mount, may_stay_open};
pub use moved::{Brought, MovedPages};
pub use numa::{Node, nodes, prefer_node};
pub use paging::{PageState, Paging};
pub use perf::{PerfEvent, PerfEventKind, PerfPace, PerfRing};
pub use poll::{PidFd, Trigger, Waiter, is_readable};
pub use proc::{
    MapEntry, MapLine, MapsText, ProcStatus, ThreadInfo, boot_id, children_of, cmdline,
    command_words, exe, is_kernel_thread, is_running, maps, maps_text, named, parse_maps,
    runnable_threads_of, shared_folder, start_ticks, status, threads, try_maps, try_stop,
};
pub use ptrace::{Held, Standby, TraceeError, tracer_of};
pub use regular::{
    FileIdentity, file_of_path, has_our_root, is_local, leads_to, leads_to_program, open_mapped,
    open_regular, open_regular_exactly, open_regular_in, within,
};
pub use rights::{Capability, Rights};
pub use root_folder::RootFolder;
pub use signals::{DeferredStop, Received, Signals, take_signal, was_just_taken};
pub use stops::{SharedStops, share_stops};
pub use tiering::{TierCounter, is_of_tiers, memory_pressure_us, tier_counters, tier_settings};
pub use usage::{GroupUsage, have_join, kill_group, stalled, swap_devices, swap_moved};
pub use userfault::{Protector, UserFault, try_write_protection, zero_runs};
pub use zram::{ZramDevice, ZramError, ZramSwap, free_swap};
