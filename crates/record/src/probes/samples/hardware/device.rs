//! A device that counts events, as sysfs describes it: `Documentation/ABI/testing/sysfs-bus-event_source-devices-*`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use varve_model::Cpu;

/// Where an event's parameter goes: bits of `config`, `config1` and so on, lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    word: usize,
    bits: Vec<u32>,
}

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    folder: PathBuf,
    /// Its name.
    pub(super) name: String,
    /// Its number.
    pub(super) number: u32,
}

impl Device {
    /// None where there is no such device.
    pub(super) fn open(devices: &Path, name: &str) -> Option<Device> {
        let folder = devices.join(name);
        let number = read(&folder.join("type"))?.parse().ok()?;
        Some(Device {
            folder,
            name: name.to_owned(),
            number,
        })
    }

    /// The devices whose names begin so, in the order of their names.
    pub(super) fn all(devices: &Path, prefix: &str) -> Vec<Device> {
        let Ok(entries) = fs::read_dir(devices) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        names
            .iter()
            .filter_map(|name| Device::open(devices, name))
            .collect()
    }

    /// The parameters of an event that the device has a name for.
    pub(super) fn event(&self, name: &str) -> Option<Event> {
        let text = read(&self.folder.join("events").join(name))?;
        let mut event = Event::default();
        for term in text.split(',') {
            let (name, value) = term.split_once('=').unwrap_or((term, "1"));
            event
                .0
                .insert(name.trim().to_owned(), number(value.trim())?);
        }
        Some(event)
    }

    /// Whether events have such a parameter.
    pub(super) fn has(&self, parameter: &str) -> bool {
        self.folder.join("format").join(parameter).exists()
    }

    /// `config` and its kin for an event; none where the device does not know one of its parameters, or a value does not fit.
    pub(super) fn encode(&self, event: &Event) -> Option<[u64; 4]> {
        let mut words = [0; 4];
        for (name, value) in &event.0 {
            let place = self.place(name)?;
            let fits = place.bits.len() >= 64 || value >> place.bits.len() == 0;
            if !fits {
                return None;
            }
            for (from, to) in place.bits.iter().enumerate() {
                words[place.word] |= (value >> from & 1) << to;
            }
        }
        Some(words)
    }

    /// `config:0-7`, `config1:0-15`, `config:0-7,21,32-35`.
    fn place(&self, parameter: &str) -> Option<Place> {
        let text = match parameter {
            // Events may be given as words, which have no format.
            "config" => "config:0-63".to_owned(),
            _ => read(&self.folder.join("format").join(parameter))?,
        };
        let (word, bits) = text.split_once(':')?;
        let word = match word.strip_prefix("config")? {
            "" => 0,
            number => number.parse().ok().filter(|n| *n < 4)?,
        };
        let ranges = ranges(bits)?;
        let bits = ranges.into_iter().flatten().collect::<Vec<u32>>();
        bits.iter().all(|b| *b < 64).then_some(Place { word, bits })
    }

    /// A number of `caps/`.
    pub(super) fn capability(&self, name: &str) -> Option<u64> {
        number(&read(&self.folder.join("caps").join(name))?)
    }

    /// The CPUs that it is a part of; none where that is all.
    pub(super) fn cpus(&self) -> Option<Vec<Cpu>> {
        let text = ["cpus", "cpumask"]
            .iter()
            .find_map(|file| read(&self.folder.join(file)))?;
        let ranges = ranges(&text)?;
        Some(ranges.into_iter().flatten().map(Cpu).collect())
    }
}

/// The parameters of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event(BTreeMap<String, u64>);

impl Event {
    /// With a parameter, instead of the value that it had.
    pub(super) fn with(mut self, name: &str, value: u64) -> Event {
        self.0.insert(name.to_owned(), value);
        self
    }
}

fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `0-3,6`
pub(super) fn ranges(text: &str) -> Option<Vec<std::ops::RangeInclusive<u32>>> {
    text.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            // No machine has more CPUs, and no word more bits.
            (last < 65_536u32).then_some(first..=last)
        })
        .collect()
}
