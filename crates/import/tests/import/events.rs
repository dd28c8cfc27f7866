//! Files of several events.

use crate::common::of_bytes;
use crate::perf_file::{ADDR, CPU, Event, ID, IDENTIFIER, IP, TID, TIME, event, file};
use varve_trace::tables::{MappingRow, SampleRow};

/// Events of one file whose samples, and the ends of whose records, have different forms: perf adds one by itself that samples
/// nothing and writes all records of mappings.
#[test]
fn a_record_has_the_form_of_the_event_that_wrote_it() {
    for number in [IDENTIFIER, ID] {
        let one = event(IP | TID | TIME | ADDR | CPU | number);
        // A number that is not in front of samples is behind the same words in all events.
        let also = if number == ID { ADDR | CPU } else { 0 };
        let other = Event {
            id: 2,
            config: 9,
            ..event(IP | TIME | TID | number | also)
        };
        let place = (0x60_0000, 0x1000);
        let records = [
            other.comm((10, 10), "a", 1000, false),
            other.data(10, place, "/opt/data", 1001),
            one.sample((10, 10), 2000, 0x40_0100, 0x60_0010),
            other.data(10, place, "/opt/later", 3000),
            one.sample((10, 10), 4000, 0x40_0100, 0x60_0010),
        ];
        let got = of_bytes(&file(&[one, other], &records), None).unwrap();
        let mappings: Vec<MappingRow> = got.trace().rows().unwrap();
        let mappings: Vec<_> = mappings
            .iter()
            .map(|m| (m.path.as_str(), m.from_ns.0))
            .collect();
        assert_eq!(mappings, [("/opt/data", 1001), ("/opt/later", 3000)]);
        let samples = got.samples();
        assert!(samples[0].contains("/opt/data"), "{samples:?}");
        assert!(samples[1].contains("/opt/later"), "{samples:?}");
    }
}

/// Events without addresses are no accesses; each sample keeps what it is of, and how many of that it stands for.
#[test]
fn samples_keep_their_event_and_its_period() {
    let bits = IP | TID | TIME | CPU | IDENTIFIER;
    let of = |id, config| Event {
        id,
        kind: 0,
        config,
        ..event(bits)
    };
    // Cycles, cache misses and branches, of which each sample is one.
    let events = [of(1, 0), of(2, 3), of(3, 4)];
    let mut records = vec![events[0].mmap(10, (0x40_0000, 0x1000), "/opt/a", 2)];
    for number in 0..6u64 {
        let event = events[number as usize % 3];
        records.push(event.sample((10, 10), 10 + number, 0x40_0100 + number % 2, 0));
    }
    let got = of_bytes(&file(&events, &records), None).unwrap();
    let rows: Vec<SampleRow> = got.trace().rows().unwrap();
    let kept: Vec<_> = rows
        .iter()
        .map(|row| (row.event.as_deref().unwrap_or_default(), row.period))
        .collect();
    let three = [
        ("cycles", Some(1)),
        ("cache-misses", Some(1)),
        ("branches", Some(1)),
    ];
    assert_eq!(kept, [three, three].concat());
    let statement = got.trace().manifest.completeness.statement;
    assert!(statement.contains("without addresses"), "{statement}");
}
