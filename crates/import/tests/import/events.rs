//! Files of several events.

use crate::common::of_bytes;
use crate::perf_file::{ADDR, CPU, Event, ID, IDENTIFIER, IP, TID, TIME, event, file};
use varve_trace::tables::MappingRow;

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
