use varve_perf::ring::Records;
use varve_perf::{Attr, DataSource, ibs, spe};

/// Reads a ring's content, with samples of whatever form the first bytes say, then the same as packets of SPE and registers of IBS
pub(crate) fn run(bytes: &[u8]) {
    let Some((form, rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let attr = Attr::of(u64::from_le_bytes(*form));
    for record in Records::new(rest) {
        let Ok(record) = record else { break };
        for big in [false, true] {
            let _ = attr.trailer(record.body, big);
            let _ = attr.id_of_sample(record.body, big);
            if let Some(sample) = attr.sample(record.body, big) {
                let _ = sample.data_source.map(DataSource::from_bits);
                let _ = sample.raw.and_then(ibs::Operation::from_raw);
                let _ = sample.chain.count();
            }
        }
    }
    let _ = ibs::Operation::from_raw(rest);
    let misaligned = usize::from(u16::from_le_bytes([form[0], form[1]]));
    let mut records = 0;
    let left = spe::decode(rest, misaligned, &mut |_| records += 1);
    assert!(records + left.unknown <= rest.len());
}
