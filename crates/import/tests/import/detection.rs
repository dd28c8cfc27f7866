//! A file is known by what it holds, whatever it is called; what only looks like a format is refused, with the place.

use crate::common::{golden, of_bytes, of_paths};
use varve_import::{ImportError, Place};
use varve_model::ImportFormat;

#[test]
fn every_golden_file_is_known() {
    let cases = [
        ("page-faults.perf.data", ImportFormat::PerfData),
        ("intel.perf-script.txt", ImportFormat::PerfScript),
        ("amd.perf-script.txt", ImportFormat::PerfScript),
        ("arm.perf-script.txt", ImportFormat::PerfScript),
        ("old.mitos.csv", ImportFormat::Mitos),
        ("new.mitos.csv", ImportFormat::Mitos),
        ("mmap_trace.iiswc22.csv", ImportFormat::Iiswc22),
        ("munmap_trace.iiswc22.csv", ImportFormat::Iiswc22),
        ("memory_trace.iiswc22.csv", ImportFormat::Iiswc22),
        ("two_targets.damon.json", ImportFormat::Damon),
        ("text.damon.txt", ImportFormat::Damon),
        ("small.lackey.txt", ImportFormat::Lackey),
        ("trace.moca.csv", ImportFormat::Moca),
        ("structs.moca.csv", ImportFormat::Moca),
        ("a.full.page.tabarnac.csv", ImportFormat::Tabarnac),
        ("a.structs.tabarnac.csv", ImportFormat::Tabarnac),
        ("a.stackmap.tabarnac.csv", ImportFormat::Tabarnac),
    ];
    for (name, format) in cases {
        // Under a name that says nothing.
        let got = of_bytes(&std::fs::read(golden(name)).unwrap(), None).unwrap();
        assert_eq!(got.summary.format, format, "{name}");
    }
}

#[test]
fn compressed_json_is_known_only_where_it_is_damos() {
    use std::io::Write;
    let zlib = |bytes: &[u8]| {
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    };
    let json = std::fs::read(golden("two_targets.damon.json")).unwrap();
    assert_eq!(
        of_bytes(&zlib(&json), None).unwrap().summary.format,
        ImportFormat::Damon
    );
    assert!(matches!(
        of_bytes(&zlib(b"[1, 2]"), None),
        Err(ImportError::Unknown { .. })
    ));
    // Cut off in the middle.
    let whole = zlib(&json);
    assert!(of_bytes(&whole[..whole.len() - 20], Some(ImportFormat::Damon)).is_err());
}

#[test]
fn what_only_looks_like_a_format_is_refused() {
    let misleading: [&[u8]; 12] = [
        b"",
        b"   \n\n",
        b"hello\n",
        // The words of formats, in other text.
        b"The file perf.data begins with PERFILE2, and mmap traces with 12.5,mmap, 4096\n",
        b"variable,source,line,time\nm_x,a.c,1,2\n",
        b"addr,type,count\n1,R,2\n",
        b"name,value\na,1\n",
        b"[{\"snapshots\": 3}]",
        b"[1, 2, 3]",
        b"xPERFILE2\0\0\0\0\0\0\0\0",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
        // An access among other lines.
        b"once\nupon\na\ntime\n L 1000,8\nthe\nend\n",
    ];
    for bytes in misleading {
        let text = String::from_utf8_lossy(bytes).into_owned();
        match of_bytes(bytes, None) {
            Err(ImportError::Unknown { why, .. }) => assert!(!why.is_empty()),
            Err(other) => panic!("{text:?}: {other}"),
            Ok(_) => panic!("{text:?} was imported"),
        }
    }
}

#[test]
fn damage_of_a_compressed_file_is_told_with_its_byte() {
    use std::io::Write;
    let json = std::fs::read(golden("two_targets.damon.json")).unwrap();
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&json).unwrap();
    let packed = packer.finish().unwrap();
    assert!(of_bytes(&packed, None).is_ok());
    for cut in [packed.len() / 2, packed.len() - 5] {
        match of_bytes(&packed[..cut], Some(ImportFormat::Damon)) {
            Err(ImportError::Damaged { place, message, .. }) => {
                assert_eq!(place, Place::Byte(cut as u64), "{message}");
                assert!(message.contains("zlib"), "{message}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was imported"),
        }
    }
}

#[test]
fn damage_is_told_with_its_place() {
    let place = |bytes: &[u8], format: Option<ImportFormat>| match of_bytes(bytes, format) {
        Err(ImportError::Damaged { place, .. }) => place,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was imported"),
    };
    let with = |name: &str, line: &str| {
        let mut bytes = std::fs::read(golden(name)).unwrap();
        bytes.extend_from_slice(line.as_bytes());
        bytes
    };
    assert_eq!(
        place(
            &with("old.mitos.csv", "m_y,a.c,1,zz,1,1,1,1,1,1,0,0,0,0\n"),
            None
        ),
        Place::Line(4)
    );
    assert_eq!(
        place(&with("old.mitos.csv", "m_y,a.c,1\n"), None),
        Place::Line(4)
    );
    assert_eq!(
        place(
            &with("memory_trace.iiswc22.csv", "100.1,7f00,L1,1,1,1,T,r\n"),
            None
        ),
        Place::Line(4)
    );
    assert_eq!(
        place(
            &with(
                "mmap_trace.iiswc22.csv",
                "100.1234567890,mmap, 1, 0x1,1,1\n"
            ),
            None
        ),
        Place::Line(3)
    );
    // No access has no bytes, or more than a page of them.
    for line in [" L zz,8\n", " L 1000,0\n", " S 1000,4097\n"] {
        assert_eq!(
            place(&with("small.lackey.txt", line), None),
            Place::Line(10),
            "{line}"
        );
    }
    assert_eq!(
        place(
            &with("trace.moca.csv", "0x1, 0x1, 1, 1, 1, 30, 20, 0\n"),
            None
        ),
        Place::Line(5)
    );
    assert_eq!(
        place(&with("a.full.page.tabarnac.csv", "1,0,X,5\n"), None),
        Place::Line(5)
    );
    assert_eq!(
        place(&with("intel.perf-script.txt", "no time here\n"), None),
        Place::Line(14)
    );
    assert_eq!(place(b"PERFILE2", None), Place::Byte(8));
    let data = std::fs::read(golden("page-faults.perf.data")).unwrap();
    assert!(matches!(
        place(&data[..data.len() / 2], None),
        Place::Byte(_)
    ));
    // A record of no size, which would be read for ever.
    let mut endless = data.clone();
    let start = u64::from_le_bytes(data[40..48].try_into().unwrap()) as usize;
    endless[start + 6..start + 8].fill(0);
    assert_eq!(place(&endless, None), Place::Byte(start as u64));
    assert_eq!(
        place(b"not this\n", Some(ImportFormat::PerfData)),
        Place::Byte(0)
    );
}

#[test]
fn files_of_two_tools_are_no_trace() {
    let files = [golden("old.mitos.csv"), golden("small.lackey.txt")];
    assert!(matches!(
        of_paths(&files, None),
        Err(ImportError::Mixed { .. })
    ));
    let missing = [golden("there-is-no-such-file")];
    assert!(matches!(
        of_paths(&missing, None),
        Err(ImportError::Io { .. })
    ));
}

/// What has to be made a text or a `perf.data` first is called by its name, with the tool that does it.
#[test]
fn what_is_packed_is_named() {
    let packed: [(&[u8], &str); 6] = [
        (b"\x1f\x8b\x08\0\0\0\0\0", "gunzip"),
        (b"\xfd7zXZ\0\0\x04", "unxz"),
        (b"\x28\xb5\x2f\xfd\x24\x05", "unzstd"),
        (b"BZh91AY&SY", "bunzip2"),
        (b"\xff\xfet\0o\0o\0l\0", "UTF-16"),
        (b"\xfe\xff\0t\0o\0o\0l", "UTF-16"),
    ];
    for (bytes, word) in packed {
        match of_bytes(bytes, None) {
            Err(ImportError::Unknown { why, .. }) => assert!(why.contains(word), "{why}"),
            Err(other) => panic!("{word}: {other}"),
            Ok(_) => panic!("{word} was imported"),
        }
    }
}
