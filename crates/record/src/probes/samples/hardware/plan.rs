//! Which events are opened: what sysfs says that this machine has, encoded as it says.

use std::path::Path;

use varve_model::{Cpu, SampleSource};
use varve_perf::sample_bit as bit;
use varve_sys::{PerfEventKind, PerfPace};

use super::device::{Device, Event};

/// Loads that take fewer cycles than this are not sampled by PEBS: it is what separates loads from everything else, and
/// `perf mem` has the same.
const LATENCY: u64 = 30;

/// IBS takes a sample in so many operations, a multiple of 16. Divided by what a CPU does in a second that is of the
/// order of the rates of the clock.
const IBS_CYCLES_PER_SECOND: u64 = 2_000_000_000;

/// The same for SPE, which counts operations.
const SPE_OPERATIONS_PER_SECOND: u64 = 2_000_000_000;

/// What all samples hold.
const SAMPLE: u64 = bit::IP
    | bit::TID
    | bit::TIME
    | bit::ADDR
    | bit::CPU
    | bit::PERIOD
    | bit::CALLCHAIN
    | bit::DATA_SRC;

/// An event to be opened on some CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// What a person may call it: `cpu/mem-loads`.
    pub(super) name: String,
    /// The event that must lead its group, which only counts.
    pub(super) leader: Option<PerfEventKind>,
    pub(super) kind: PerfEventKind,
    /// The CPUs; none where that is all.
    pub(super) cpus: Option<Vec<Cpu>>,
    /// Whether samples come in an AUX buffer.
    pub(super) aux: bool,
}

/// The events of a source, so many samples asked for per second of each CPU; none where the machine lacks it.
pub(super) fn plan(devices: &Path, source: SampleSource, rate: u32) -> Vec<Planned> {
    match source {
        SampleSource::Pebs => pebs(devices, rate),
        SampleSource::Ibs => ibs(devices, rate).into_iter().collect(),
        SampleSource::Spe => spe(devices, rate),
        _ => Vec::new(),
    }
}

/// The core's own device, or two where there are two kinds of cores.
fn pebs(devices: &Path, rate: u32) -> Vec<Planned> {
    let mut found = Vec::new();
    for name in ["cpu", "cpu_core", "cpu_atom"] {
        let Some(device) = Device::open(devices, name) else {
            continue;
        };
        let precise = device
            .capability("max_precise")
            .map_or(2, |most| most.min(3) as u8);
        // Without PEBS there are no addresses.
        if precise == 0 {
            continue;
        }
        let kind = |event: &Event| {
            Some(PerfEventKind {
                device: device.number,
                config: device.encode(event)?,
                pace: Some(PerfPace::Frequency(rate.into())),
                sample: SAMPLE | bit::WEIGHT_STRUCT,
                precise,
                user_only: true,
                switches: false,
            })
        };
        let planned = |event: &str, kind, leader| Planned {
            name: format!("{name}/{event}"),
            leader,
            kind,
            cpus: device.cpus(),
            aux: false,
        };
        if let Some(loads) = device.event("mem-loads") {
            let loads = match device.has("ldlat") {
                true => loads.with("ldlat", LATENCY),
                false => loads,
            };
            // Where the PMU has this event, loads can only be sampled behind it (Sapphire Rapids and later).
            let leader = device.event("mem-loads-aux").and_then(|event| {
                Some(PerfEventKind {
                    pace: None,
                    sample: 0,
                    precise: 0,
                    ..kind(&event)?
                })
            });
            found.extend(kind(&loads).map(|kind| planned("mem-loads", kind, leader)));
        }
        if let Some(stores) = device.event("mem-stores") {
            found.extend(kind(&stores).map(|kind| planned("mem-stores", kind, None)));
        }
    }
    found
}

fn ibs(devices: &Path, rate: u32) -> Option<Planned> {
    let device = Device::open(devices, "ibs_op")?;
    // Operations rather than cycles where it can, as cycles favour what waits.
    let mut event = Event::default();
    if device.has("cnt_ctl") {
        event = event.with("cnt_ctl", 1);
    }
    // Newer kernels leave out what is not the program's, the hardware cannot.
    let filters = device.has("swfilt");
    if filters {
        event = event.with("swfilt", 1);
    }
    Some(Planned {
        name: device.name.clone(),
        leader: None,
        kind: PerfEventKind {
            device: device.number,
            config: device.encode(&event)?,
            pace: Some(PerfPace::Period(period(IBS_CYCLES_PER_SECOND, rate, 0x90))),
            sample: SAMPLE | bit::WEIGHT_STRUCT | bit::RAW,
            precise: 0,
            user_only: filters,
            switches: false,
        },
        cpus: device.cpus(),
        aux: false,
    })
}

/// One device for each kind of cores.
fn spe(devices: &Path, rate: u32) -> Vec<Planned> {
    let planned = |device: Device| {
        let mut event = Event::default();
        // Loads and stores with a time each; and a period that varies a little, so that no loop beats with it.
        for parameter in ["ts_enable", "load_filter", "store_filter", "jitter"] {
            if device.has(parameter) {
                event = event.with(parameter, 1);
            }
        }
        let least = device.capability("min_interval").unwrap_or(0).max(1024);
        Some(Planned {
            name: device.name.clone(),
            leader: None,
            kind: PerfEventKind {
                device: device.number,
                config: device.encode(&event)?,
                pace: Some(PerfPace::Period(period(
                    SPE_OPERATIONS_PER_SECOND,
                    rate,
                    least,
                ))),
                sample: bit::IP | bit::TID | bit::TIME | bit::CPU,
                precise: 0,
                user_only: true,
                switches: true,
            },
            cpus: device.cpus(),
            aux: true,
        })
    };
    Device::all(devices, "arm_spe_")
        .into_iter()
        .filter_map(planned)
        .collect()
}

/// A period, at least so long, of which the lowest four bits are zero.
fn period(per_second: u64, rate: u32, least: u64) -> u64 {
    (per_second / u64::from(rate.max(1))).max(least) & !15
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder of devices with these files.
    fn devices(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{content}\n")).unwrap();
        }
        folder
    }

    const FORMAT: [(&str, &str); 4] = [
        ("cpu/type", "4"),
        ("cpu/format/event", "config:0-7"),
        ("cpu/format/umask", "config:8-15"),
        ("cpu/format/ldlat", "config1:0-15"),
    ];

    #[test]
    fn intel_loads_and_stores_are_encoded_as_sysfs_says() {
        let mut files = FORMAT.to_vec();
        files.extend([
            ("cpu/caps/max_precise", "3"),
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
            ("cpu/events/mem-stores", "event=0xd0,umask=0x82"),
        ]);
        let folder = devices(&files);
        let events = plan(folder.path(), SampleSource::Pebs, 1000);
        let [loads, stores] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(loads.kind.config, [0x1cd, LATENCY, 0, 0]);
        assert_eq!(stores.kind.config, [0x82d0, 0, 0, 0]);
        assert_eq!((loads.kind.device, loads.kind.precise), (4, 3));
        assert_eq!(loads.kind.pace, Some(PerfPace::Frequency(1000)));
        assert!(loads.kind.user_only && loads.leader.is_none() && loads.cpus.is_none());
        assert!(plan(folder.path(), SampleSource::Ibs, 1000).is_empty());
        assert!(plan(folder.path(), SampleSource::Spe, 1000).is_empty());
    }

    #[test]
    fn loads_follow_an_auxiliary_event_where_there_is_one() {
        let mut files = FORMAT.to_vec();
        files.extend([
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
            ("cpu/events/mem-loads-aux", "event=0x03,umask=0x82"),
        ]);
        let folder = devices(&files);
        let events = plan(folder.path(), SampleSource::Pebs, 1000);
        let leader = events[0].leader.unwrap();
        assert_eq!(leader.config[0], 0x8203);
        assert_eq!((leader.pace, leader.sample, leader.precise), (None, 0, 0));
    }

    #[test]
    fn both_kinds_of_cores_are_sampled() {
        let folder = devices(&[
            ("cpu_core/type", "4"),
            ("cpu_core/cpus", "0-3,8"),
            ("cpu_core/format/event", "config:0-7"),
            ("cpu_core/events/mem-stores", "event=0xcd"),
            ("cpu_atom/type", "10"),
            ("cpu_atom/cpus", "4-7"),
            // Split fields are filled from the lowest bit on.
            ("cpu_atom/format/event", "config:0-7,32-35"),
            ("cpu_atom/events/mem-stores", "event=0x5d0"),
        ]);
        let events = plan(folder.path(), SampleSource::Pebs, 1000);
        let cpus = |i: usize| {
            events[i]
                .cpus
                .clone()
                .unwrap()
                .iter()
                .map(|c| c.0)
                .collect::<Vec<_>>()
        };
        assert_eq!((cpus(0), cpus(1)), (vec![0, 1, 2, 3, 8], vec![4, 5, 6, 7]));
        assert_eq!(events[1].kind.config[0], 0x5_0000_00d0);
        assert_eq!(events[1].kind.device, 10);
    }

    #[test]
    fn a_core_without_precise_events_has_no_addresses() {
        let mut files = FORMAT.to_vec();
        files.extend([
            ("cpu/caps/max_precise", "0"),
            ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
        ]);
        let folder = devices(&files);
        assert!(plan(folder.path(), SampleSource::Pebs, 1000).is_empty());
    }

    #[test]
    fn what_sysfs_does_not_explain_is_not_opened() {
        let mut files = FORMAT.to_vec();
        files.extend([
            ("cpu/events/mem-loads", "event=0xcd,mystery=1"),
            ("cpu/events/mem-stores", "event=0x1d0"),
        ]);
        let folder = devices(&files);
        assert_eq!(plan(folder.path(), SampleSource::Pebs, 1000), []);
    }

    #[test]
    fn ibs_counts_operations_and_filters_where_the_kernel_can() {
        let mut files = vec![("ibs_op/type", "9"), ("ibs_op/format/cnt_ctl", "config:19")];
        let old = devices(&files);
        let event = plan(old.path(), SampleSource::Ibs, 1000).remove(0);
        assert_eq!(event.kind.config, [1 << 19, 0, 0, 0]);
        assert_eq!(event.kind.pace, Some(PerfPace::Period(2_000_000)));
        assert!(!event.kind.user_only && event.kind.sample & bit::RAW != 0);
        files.push(("ibs_op/format/swfilt", "config2:0"));
        let new = devices(&files);
        let event = plan(new.path(), SampleSource::Ibs, 1_000_000_000).remove(0);
        assert_eq!(event.kind.config, [1 << 19, 0, 1, 0]);
        assert_eq!(event.kind.pace, Some(PerfPace::Period(0x90)));
        assert!(event.kind.user_only);
    }

    #[test]
    fn spe_samples_loads_and_stores_on_its_own_cores() {
        let folder = devices(&[
            ("arm_spe_0/type", "11"),
            ("arm_spe_0/cpumask", "0-1"),
            ("arm_spe_0/caps/min_interval", "4096"),
            ("arm_spe_0/format/ts_enable", "config:0"),
            ("arm_spe_0/format/jitter", "config:16"),
            ("arm_spe_0/format/load_filter", "config:33"),
            ("arm_spe_0/format/store_filter", "config:34"),
            ("arm_spe_1/type", "12"),
        ]);
        let events = plan(folder.path(), SampleSource::Spe, 1_000_000);
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].kind.config[0], 1 | 1 << 16 | 3 << 33);
        assert_eq!(events[0].kind.pace, Some(PerfPace::Period(4096)));
        assert!(events[0].aux && events[0].kind.switches);
        assert_eq!(events[0].cpus, Some(vec![Cpu(0), Cpu(1)]));
        assert_eq!(events[1].kind.device, 12);
    }
}
