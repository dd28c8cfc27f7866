//! What a recorder wrote raw becomes objects, however many there are.

use std::borrow::Cow;
use std::path::Path;

use varve_attribute::finish;
use varve_model::{Address, Backend, Bytes, ObjectId, ObjectKind, Pid, Tid, Time};
use varve_trace::tables::{BirthRow, DeathRow, ObjectRow};
use varve_trace::{Manifest, TraceError, TraceWriter, finish_tables};

fn birth(object: u64) -> BirthRow {
    BirthRow {
        object: ObjectId(object),
        pid: Pid(1),
        kind: ObjectKind::Heap,
        made_by: Cow::Borrowed("malloc"),
        address: Address(0x5555_0000_0000 + object * 4112),
        bytes: Bytes(4096),
        born_ns: Time(1000 + object),
        tid: Some(Tid(1)),
        site: None,
        pool: false,
        reserved: false,
        continues: None,
    }
}

fn death(object: u64, died: u64) -> DeathRow {
    DeathRow {
        object: ObjectId(object),
        died_ns: Time(died),
    }
}

/// Records these in parts of so many rows, and puts the trace in order.
fn recorded(
    folder: &Path,
    births: &[BirthRow],
    deaths: &[DeathRow],
    part: usize,
) -> Result<Vec<ObjectRow>, TraceError> {
    let manifest = Manifest::begun(Backend::Scan);
    let mut writer = TraceWriter::create(&folder.join("t.varve"), &manifest).unwrap();
    for rows in births.chunks(part) {
        writer.append(rows).unwrap();
    }
    for rows in deaths.chunks(part) {
        writer.append(rows).unwrap();
    }
    let folder = writer.into_folder();
    finish_tables(&folder, &mut |_| ()).unwrap();
    finish(
        &folder.trace()?,
        &(&folder).into(),
        Bytes(4096),
        varve_attribute::OpenFiles::default(),
    )?;
    folder.trace()?.rows()
}

/// More objects than deaths are held at a time; the deaths come in an order of their own.
#[test]
fn a_million_objects_get_their_own_deaths() {
    let dir = tempfile::tempdir().unwrap();
    let count = (1 << 20) + 50_000;
    let births: Vec<BirthRow> = (0..count).map(birth).collect();
    let dies = |object: u64| (!object.is_multiple_of(7)).then_some(5_000_000 + object * 3);
    // A number that has no divisor in common with the count visits each object once.
    let shuffled = (0..count).map(|i| i * 611_953 % count);
    let deaths: Vec<DeathRow> = shuffled
        .filter_map(|object| Some(death(object, dies(object)?)))
        .collect();
    let objects = recorded(dir.path(), &births, &deaths, 200_000).unwrap();
    assert_eq!(objects.len() as u64, count);
    for (object, row) in (0..).zip(&objects) {
        let birth = birth(object);
        assert_eq!((row.object, row.address), (birth.object, birth.address));
        assert_eq!(row.born_ns, birth.born_ns);
        assert_eq!(row.died_ns, dies(object).map(Time), "object {object}");
    }
}

#[test]
fn deaths_that_fit_no_birth_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    // A recorder may be killed between writing deaths and writing births.
    let deaths = [
        death(7, 5000),
        death(1, 5),
        death(0, 3000),
        death(3_000_000, 1),
    ];
    let births: Vec<BirthRow> = (0..3).map(birth).collect();
    let objects = recorded(dir.path(), &births, &deaths, 2).unwrap();
    let died: Vec<_> = objects.iter().map(|o| o.died_ns.map(|t| t.0)).collect();
    // Nothing ends before it begins.
    assert_eq!(died, [Some(3000), Some(1001), None]);
}

/// Numbers that no recorder gives would have all deaths read again for each of them.
#[test]
fn numbers_out_of_order_are_refused() {
    for wrong in [vec![3, 2], vec![1, 1], vec![0, 1 << 40]] {
        let dir = tempfile::tempdir().unwrap();
        let births: Vec<BirthRow> = wrong.iter().map(|n| birth(*n)).collect();
        let error = recorded(dir.path(), &births, &[death(3, 9)], 10).unwrap_err();
        assert!(error.to_string().contains("out of order"), "{error}");
    }
}
