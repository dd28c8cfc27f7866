//! Instructions of AArch64 as GNU as makes them, and where a thread that stands in them accesses memory. What executed code does
//! is compared in `executed`.

use proptest::prelude::*;
use varve_access::aarch64::{Code, Registers};
use varve_access::{Access, Kind, Located, Place, Steps, Undecoded};
use varve_model::{Address, Bytes};

const BASE: u64 = 0x40_0000;
const NOP: u32 = 0xd503_201f;

/// X0 to X30, each with a value of its own.
fn registers() -> Registers {
    Registers {
        general: std::array::from_fn(|i| Some(0x1000 * (i as u64 + 1))),
        sp: Some(0x7f00_0000_0000),
        flags: Some(0),
    }
}

fn code(words: &[u32]) -> Code {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    Code::decode(&bytes, Address(BASE))
}

/// What is said of a thread before the instruction of that number.
fn locate(words: &[u32], at: u64, registers: &Registers) -> Result<Located, Undecoded> {
    code(words).locate(Address(BASE + 4 * at), registers, Steps::All)
}

fn found(place: Place, address: u64, bytes: u64, kind: Kind) -> Result<Located, Undecoded> {
    Ok(Located {
        place,
        accesses: vec![Access {
            address: Address(address),
            bytes: Bytes(bytes),
            kind,
        }],
    })
}

#[test]
fn the_access_behind_is_found() {
    use Kind::{Read, Write};
    let r = registers();
    let cases = [
        // ldr x0,[x1,x2,lsl #3]
        (0xf862_7820, 0x2000 + 0x3000 * 8, 8, Read),
        // ldr w0,[x2,w3,sxtw #2]
        (0xb863_d840, 0x3000 + 0x4000 * 4, 4, Read),
        // ldp x0,x4,[sp],#32: the pointer has moved
        (0xa8c2_13e0, 0x7f00_0000_0000 - 32, 16, Read),
        // ldadd x2,x7,[x6]: reading and writing is writing
        (0xf822_00c7, 0x7000, 8, Write),
        // ldr x0, 64 bytes on
        (0x5800_0200, BASE + 64, 8, Read),
        // stxr w3,x2,[x5]
        (0xc803_7ca2, 0x6000, 8, Write),
        // ld3 {v0.4s-v2.4s},[x9],x2
        (0x4cc2_4920, 0xa000 - 0x3000, 48, Read),
    ];
    for (word, address, bytes, kind) in cases {
        assert_eq!(
            locate(&[word, NOP], 1, &r),
            found(Place::Behind, address, bytes, kind),
            "{word:#x}"
        );
    }
}

#[test]
fn what_is_lost_is_not_guessed() {
    let r = registers();
    // ldr x1,[x1]; nop; ret
    let lost = [0xf940_0021, NOP, 0xd65f_03c0];
    assert_eq!(locate(&lost, 1, &r), Err(Undecoded::Overwritten));
    assert_eq!(
        locate(&lost, 0, &r),
        found(Place::At, 0x2000, 8, Kind::Read)
    );
    // ld1w {z0.s},p0/z,[x1,z1.s,uxtw #2]; nop; ldr x1,[x1]
    let gather = [0x8521_4020, NOP, 0xf940_0021];
    assert_eq!(locate(&gather, 1, &r), Err(Undecoded::Gather));
    assert_eq!(locate(&gather, 0, &r), Err(Undecoded::Gather));
    // dc zva,x1: how much it clears only the processor knows
    assert_eq!(locate(&[0xd50b_7421, NOP], 1, &r), Err(Undecoded::Vector));
    // A prefetch waits for nothing.
    assert_eq!(
        locate(&[0xf980_0020, 0xf940_0021], 1, &r),
        found(Place::At, 0x2000, 8, Kind::Read)
    );
    // No instruction; one whose registers move as the processor likes (cpyfp); an address within one.
    assert_eq!(
        locate(&[0x0000_ffff << 16, NOP], 0, &r),
        Err(Undecoded::Invalid)
    );
    assert_eq!(locate(&[0x1901_0440, NOP], 1, &r), Err(Undecoded::Path));
    let within = code(&lost).locate(Address(BASE + 2), &r, Steps::All);
    assert_eq!(within, Err(Undecoded::Invalid));
    // The register that it is addressed by is not known.
    let mut unknown = r.clone();
    unknown.general[1] = None;
    assert_eq!(locate(&lost, 0, &unknown), Err(Undecoded::Register));
}

#[test]
fn a_tag_in_the_upper_byte_is_no_part_of_the_address() {
    let mut r = registers();
    r.general[1] = Some(0x5a00_0000_0000_2000);
    let load = [0xf940_0021, NOP];
    assert_eq!(
        locate(&load, 0, &r),
        found(Place::At, 0x2000, 8, Kind::Read)
    );
}

#[test]
fn a_branch_target_has_no_certain_predecessor() {
    // ldr x0,[x1]; 1: nop; cbnz x2,1b; ret
    let words = [0xf940_0020, NOP, 0xb5ff_ffe2, 0xd65f_03c0];
    let code = code(&words);
    let at = |steps| code.locate(Address(BASE + 4), &registers(), steps);
    assert_eq!(at(Steps::All), Err(Undecoded::Path));
    assert_eq!(
        at(Steps::Blind),
        found(Place::Behind, 0x2000, 8, Kind::Read)
    );
}

proptest! {
    /// Whatever the words are, an answer lies within what an instruction can access.
    #[test]
    fn any_words_end_in_an_answer_or_none(words in proptest::collection::vec(any::<u32>(), 1..80), at in 0u64..80, known in any::<u32>()) {
        let mut registers = registers();
        for (number, value) in registers.general.iter_mut().enumerate() {
            *value = value.filter(|_| known >> number & 1 == 1);
        }
        if let Ok(found) = locate(&words, at, &registers) {
            prop_assert_eq!(found.accesses.len(), 1);
            prop_assert!((1..=64).contains(&found.accesses[0].bytes.0));
        }
    }
}
