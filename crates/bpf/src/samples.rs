//! Samples by the clock: a perf event of every CPU, whose interrupts run a program

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Instant;

use libbpf_rs::{Link, Object};
use varve_model::{Address, Cpu, Duration, Pid, Tid, Time};

use crate::abi::{self, Plain, RecSample, Record, SampleCost};
use crate::kernel::{map_error, system};
use crate::programs::SAMPLE_CLOCK;
use crate::ring::Ring;
use crate::{BpfError, raw};

/// `PERF_EVENT_IOC_PERIOD`: `_IOW('$', 4, __u64)` of include/uapi/linux/perf_event.h
const SET_PERIOD: libc::c_ulong = 0x4008_2404;

/// What a thread was doing when its CPU's clock interrupted it
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSample<'a> {
    /// When
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// CPU number
    pub cpu: Cpu,
    /// Which code was interrupted
    pub place: Whereabouts,
    /// Whether the program's own code is 32-bit
    pub compat: bool,
    /// The program's next instruction, also where the kernel was at work
    pub ip: Address,
    /// The program's flags register
    pub flags: u64,
    /// The program's general registers in the order of their numbers: ax cx dx bx sp bp si di r8 to r15
    pub general: [u64; 16],
    /// Base of the segment FS. A program that sets it without the kernel (`wrfsbase`) has another one
    /// until its thread is next switched.
    pub fs_base: u64,
    /// Base of the segment GS, likewise
    pub gs_base: u64,
    /// The time of a CPU that it stands for
    pub period: Duration,
    /// Memory from the stack pointer on, as far as could be copied
    pub stack: &'a [u8],
    /// The 128 bytes below the stack pointer, which functions that call no others may use; none where they could not be copied
    pub red_zone: Option<RedZone>,
}

/// Memory that ends at the stack pointer
pub type RedZone = [u8; 128];

/// Which code a sample interrupted
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// The program's own
    User,
    /// The kernel's, in a system call
    Call,
    /// The kernel's, for a fault or an interrupt
    Trap,
}

/// Takes samples for as long as it lives
pub struct Samples {
    ring: Ring,
    maps: SampleMaps,
    /// Of each CPU
    events: Vec<OwnedFd>,
    _links: Vec<Link>,
}

/// What the program and its reader share besides the ring
pub(crate) struct SampleMaps {
    pub(crate) drops: OwnedFd,
    pub(crate) cost: OwnedFd,
    pub(crate) period: OwnedFd,
}

/// What samples have taken of the time of the threads that they were taken of
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SamplesTaken {
    /// How many
    pub taken: u64,
    /// How long the program of the interrupts ran; the interrupts themselves take more ([`interrupt_time`])
    pub time: Duration,
}

impl Samples {
    pub(crate) fn start(
        object: &Object,
        ring: Ring,
        maps: SampleMaps,
        rate: u32,
    ) -> Result<Samples, BpfError> {
        let period = period_of(rate);
        let program = object
            .progs_mut()
            .find(|program| program.name() == SAMPLE_CLOCK && program.autoload())
            .ok_or_else(|| BpfError::Load("the kernel refused the program sample_clock".into()))?;
        let set = raw::map_update(maps.period.as_fd(), 0, &period.0);
        set.map_err(map_error("sample_period"))?;
        let (mut links, mut events) = (Vec::new(), Vec::new());
        for cpu in online_cpus().map_err(system("reading which CPUs are online"))? {
            let event = open_clock(cpu, period).map_err(system("opening the cpu-clock event"))?;
            let kept = event.try_clone();
            events.push(kept.map_err(system("copying an event's descriptor"))?);
            // The link owns the event from here on
            let link = program
                .attach_perf_event(event.into_raw_fd())
                .map_err(|error| BpfError::Load(format!("sample_clock: {error}")))?;
            links.push(link);
        }
        Ok(Samples {
            ring,
            maps,
            events,
            _links: links,
        })
    }

    /// Takes so many samples per second of each CPU from now on
    ///
    /// # Errors
    /// [`BpfError::System`] where the kernel refuses the period.
    pub fn set_rate(&mut self, rate: u32) -> Result<(), BpfError> {
        let period = period_of(rate);
        for event in &self.events {
            let mut wanted = period.0;
            // SAFETY: the request reads 8 bytes, which live until it returns (perf_event_open(2))
            let result = unsafe { libc::ioctl(event.as_raw_fd(), SET_PERIOD, &raw mut wanted) };
            if result < 0 {
                return Err(system("changing the period of samples")(
                    io::Error::last_os_error(),
                ));
            }
        }
        let set = raw::map_update(self.maps.period.as_fd(), 0, &period.0);
        set.map_err(map_error("sample_period"))
    }

    /// What the samples have taken since the load
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counter cannot be read.
    pub fn taken(&self) -> Result<SamplesTaken, BpfError> {
        let cost: SampleCost =
            raw::map_lookup(self.maps.cost.as_fd(), 0).map_err(map_error("sample_cost"))?;
        Ok(SamplesTaken {
            taken: cost.taken,
            time: Duration(cost.ns),
        })
    }

    /// Hands out what was taken since the last call, nearly in the order of time; gives how many
    ///
    /// # Errors
    /// [`BpfError::Record`] for a record that makes no sense.
    pub fn drain(&mut self, sink: &mut dyn FnMut(ClockSample<'_>)) -> Result<usize, BpfError> {
        self.ring.drain(&mut |bytes| {
            sink(decode(bytes).ok_or(BpfError::Record {
                kind: 0,
                bytes: bytes.len(),
            })?);
            Ok(())
        })
    }

    /// Samples that did not fit the ring since the load
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counter cannot be read.
    pub fn dropped(&self) -> Result<u64, BpfError> {
        raw::map_lookup::<u64>(self.maps.drops.as_fd(), abi::DROP_SAMPLE)
            .map_err(map_error("drops"))
    }
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples")
            .field("cpus", &self.events.len())
            .finish_non_exhaustive()
    }
}

fn decode(bytes: &[u8]) -> Option<ClockSample<'_>> {
    let head = Record::read(bytes)?;
    let rest = bytes.get(size_of::<Record>()..)?;
    let sample = RecSample::read(rest)?;
    Some(ClockSample {
        time: Time(head.time),
        pid: Pid(head.pid),
        tid: Tid(head.tid),
        cpu: Cpu(head.aux >> 8),
        place: match head.aux & abi::SAMPLE_PLACE {
            abi::SAMPLE_CALL => Whereabouts::Call,
            abi::SAMPLE_TRAP => Whereabouts::Trap,
            _ => Whereabouts::User,
        },
        compat: head.aux & abi::SAMPLE_COMPAT != 0,
        ip: Address(sample.ip),
        flags: sample.flags,
        general: sample.regs,
        fs_base: sample.fs_base,
        gs_base: sample.gs_base,
        period: Duration(sample.period),
        red_zone: (head.aux & abi::SAMPLE_RED_ZONE != 0).then(|| red_zone(&sample.red_zone)),
        stack: rest
            .get(size_of::<RecSample>()..)?
            .get(..head.kind as usize)?,
    })
}

fn red_zone(words: &[u64; 16]) -> RedZone {
    let mut bytes = [0; 128];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    bytes
}

pub(crate) fn period_of(rate: u32) -> Duration {
    Duration(1_000_000_000 / u64::from(rate.max(1)))
}

/// Measures on the calling thread how long the interrupt of such a clock keeps it from its work, without any program: on a
/// virtual machine the hypervisor's part is most of it
///
/// The clock is that of a CPU: one of a thread would have the kernel change the code of its scheduler, twice.
///
/// # Errors
/// Where the clock cannot be opened.
pub fn interrupt_time() -> io::Result<Duration> {
    const PERIOD: Duration = Duration(25_000);
    const ROUNDS: u32 = 3;
    // Long enough for two dozen interrupts, and short for who waits for it.
    const ROUND_NS: f64 = 600_000.0;
    let time = |work: u32| {
        let began = Instant::now();
        for i in 0..work {
            std::hint::black_box(i);
        }
        began.elapsed().as_nanos() as f64
    };
    // The least of several: what others do on this CPU meanwhile must not count.
    let least = |work: u32| (0..ROUNDS).map(|_| time(work)).fold(f64::MAX, f64::min);
    let mut work = 20_000u32;
    while least(work) < ROUND_NS / 10.0 {
        work *= 2;
    }
    let work = (f64::from(work) * ROUND_NS / least(work)) as u32;
    let plain = least(work);
    let mut slowed = f64::MAX;
    for _ in 0..ROUNDS {
        let cpu = current_cpu();
        let clock = open_clock(cpu, PERIOD)?;
        let took = time(work);
        drop(clock);
        // Who was moved to another CPU was not interrupted all the time
        if current_cpu() == cpu {
            slowed = slowed.min(took);
        }
    }
    if slowed == f64::MAX {
        return Ok(PERIOD);
    }
    // In the time that the work takes now comes one interrupt in each period
    let interrupts = (slowed / PERIOD.0 as f64).max(1.0);
    Ok(Duration(((slowed - plain).max(0.0) / interrupts) as u64))
}

fn current_cpu() -> Cpu {
    // SAFETY: takes nothing and touches no memory
    Cpu(unsafe { libc::sched_getcpu() }.max(0) as u32)
}

/// Opens the software event `cpu-clock` on a CPU: a timer that interrupts whatever runs there
pub(crate) fn open_clock(cpu: Cpu, period: Duration) -> io::Result<OwnedFd> {
    let mut attributes = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = period.0.max(1);
    // SAFETY: perf_event_open reads `size` bytes of the attributes, which live until it returns
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            -1,
            cpu.0 as libc::c_int,
            -1,
            libbpf_sys::PERF_FLAG_FD_CLOEXEC as libc::c_ulong,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nobody else has it
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The numbers of the CPUs that are online: `0-3,6` in the kernel's words
pub(crate) fn online_cpus() -> io::Result<Vec<Cpu>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpus(text.trim())
        .ok_or_else(|| io::Error::other(format!("cannot read `{}`", text.trim())))
}

fn parse_cpus(text: &str) -> Option<Vec<Cpu>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        all.extend((first..=last).map(Cpu));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        let cpus = |text| parse_cpus(text).map(|all| all.iter().map(|c| c.0).collect::<Vec<_>>());
        assert_eq!(cpus("0"), Some(vec![0]));
        assert_eq!(cpus("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpus("x"), None);
    }

    #[test]
    fn a_cut_record_is_none() {
        let mut record = vec![0u8; size_of::<Record>() + size_of::<RecSample>() + 16];
        record[0] = 16; // bytes of stack
        record[4] = 0x06; // in the kernel for a trap, 32-bit
        record[5] = 3; // CPU
        let sample = decode(&record).expect("a whole record");
        assert_eq!((sample.cpu, sample.place), (Cpu(3), Whereabouts::Trap));
        assert!(sample.compat);
        assert_eq!(sample.stack.len(), 16);
        for cut in 0..record.len() {
            assert!(decode(&record[..cut]).is_none(), "{cut} bytes");
        }
    }
}
