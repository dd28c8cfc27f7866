//! Instructions as GNU as makes them, and where a thread that stands in them accesses memory.

use varve_access::x86::{Code, Registers, Vectors, boundary_before};
use varve_access::{Access, Copies, Kind, Located, Place, Steps, Undecoded, Unknown};
use varve_model::{Address, Bytes};

const BASE: u64 = 0x40_0000;

/// ax cx dx bx sp bp si di r8 to r15, each with a value of its own.
fn registers() -> Registers {
    let values = std::array::from_fn(|i| Some(0x1000 * (i as u64 + 1)));
    Registers {
        general: values,
        flags: Some(0),
        fs_base: Some(0x7f00_0000_0000),
        gs_base: Some(0),
        vectors: None,
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn locate(hex: &str, offset: u64, registers: &Registers) -> Result<Located, Undecoded> {
    Code::decode(&bytes(hex), Address(BASE)).locate(
        Address(BASE + offset),
        registers,
        &Unknown,
        Steps::All,
    )
}

fn read(address: u64, bytes: u64) -> Access {
    Access {
        address: Address(address),
        bytes: Bytes(bytes),
        kind: Kind::Read,
    }
}

fn write(address: u64, bytes: u64) -> Access {
    Access {
        kind: Kind::Write,
        ..read(address, bytes)
    }
}

fn at(place: Place, accesses: &[Access]) -> Result<Located, Undecoded> {
    Ok(Located {
        place,
        accesses: accesses.to_vec(),
    })
}

#[test]
fn the_access_behind_is_found_where_its_registers_are_intact() {
    let r = registers();
    let cases = [
        // mov rax,[rbx+rcx*8+0x10]; add rdx,rax
        ("488b44cb10 4801c2", 5, read(0x4000 + 0x2000 * 8 + 0x10, 8)),
        // mov eax,[rip+0x100]; nop
        ("8b0500010000 90", 6, read(BASE + 0x106, 4)),
        // mov rax,fs:[0x28]; nop
        ("64488b042528000000 90", 9, read(0x7f00_0000_0028, 8)),
        // vmovups ymm0,[r8+r9-0x20]; nop
        ("c4817c104408e0 90", 7, read(0x9000 + 0xa000 - 0x20, 32)),
        // mov eax,[r12+rdi*4]; nop
        ("418b04bc 90", 4, read(0xd000 + 0x8000 * 4, 4)),
        // mov eax,[edi+esi*4]; nop
        ("678b04b7 90", 4, read(0x8000 + 0x7000 * 4, 4)),
        // lock add dword [rdi+4],1; nop: reading and writing is writing
        ("f083470401 90", 5, write(0x8004, 4)),
        // lock cmpxchg [rdi],rsi; nop
        ("f0480fb137 90", 5, write(0x8000, 8)),
        // push rbp; mov rbp,rsp: the pointer has moved
        ("55 4889e5", 1, write(0x5000, 8)),
        // pop rbx; nop
        ("5b 90", 1, read(0x5000 - 8, 8)),
        // stosq; nop
        ("48ab 90", 2, write(0x8000 - 8, 8)),
        // cmovne rax,[rbx]; nop: it reads whatever the flags say
        ("480f4503 90", 4, read(0x4000, 8)),
    ];
    for (hex, offset, access) in cases {
        assert_eq!(
            locate(hex, offset, &r),
            at(Place::Behind, &[access]),
            "{hex}"
        );
    }
}

#[test]
fn both_sides_of_a_string_move_are_resolved() {
    // movsd; nop
    let found = locate("a5 90", 1, &registers());
    let sides = [write(0x8000 - 4, 4), read(0x7000 - 4, 4)];
    let found = found.unwrap();
    assert_eq!(found.place, Place::Behind);
    assert!(
        sides.iter().all(|side| found.accesses.contains(side)),
        "{found:?}"
    );
    assert_eq!(found.accesses.len(), 2);
    // Down, where the flags say so.
    let mut down = registers();
    down.flags = Some(1 << 10);
    let found = locate("a5 90", 1, &down).unwrap();
    assert!(found.accesses.contains(&write(0x8000 + 4, 4)), "{found:?}");
    // rep movsb, interrupted within: the registers are at the next element.
    let found = locate("f3a4 90", 0, &registers()).unwrap();
    assert_eq!(found.place, Place::At);
    assert!(found.accesses.contains(&read(0x7000, 1)), "{found:?}");
    assert!(found.accesses.contains(&write(0x8000, 1)), "{found:?}");
    // Of one that has ended nobody knows whether it accessed anything; nothing follows here.
    assert_eq!(locate("f3a4 90", 2, &registers()), Err(Undecoded::Path));
    // With a count of zero it accesses nothing.
    let mut none = registers();
    none.general[1] = Some(0);
    assert_eq!(locate("f3a4 90", 0, &none), Err(Undecoded::Path));
}

#[test]
fn overwritten_registers_are_computed_anew() {
    // mov rcx,rdx; shr rcx,33; and rcx,0xff; mov rcx,[rbx+rcx*8]; add rax,rcx
    let mut r = registers();
    r.general[2] = Some(0x1234_5678_9abc_def0);
    r.general[1] = None;
    let index = (0x1234_5678_9abc_def0_u64 >> 33) & 0xff;
    assert_eq!(
        locate("4889d1 48c1e921 4881e1ff000000 488b0ccb 4801c8", 18, &r),
        at(Place::Behind, &[read(0x4000 + index * 8, 8)])
    );
    // mov rax,[rbx+8]; add rbx,64; mov rdx,[rbx-8]; nop
    assert_eq!(
        locate("488b4308 4883c340 488b53f8 90", 12, &registers()),
        at(Place::Behind, &[read(0x4000 - 8, 8)])
    );
    // movzx ecx,ah; mov rax,[rbx+rcx*4]; nop: the move overwrites what it is not addressed by
    assert_eq!(
        locate("0fb6cc 488b048b 90", 7, &registers()),
        at(Place::Behind, &[read(0x4000 + 0x2000 * 4, 8)])
    );
}

#[test]
fn a_long_chain_of_loads_leaves_the_last_one_resolved() {
    // mov rdx,[rdi+rax*8]; mov rax,[rdi+rdx*8]; and so on; nop: where the first ones read is gone, and does not matter
    let chain = "488b14c7 488b04d7".repeat(12) + "90";
    assert_eq!(
        locate(&chain, 12 * 8, &registers()),
        at(Place::Behind, &[read(0x8000 + 0x3000 * 8, 8)])
    );
}

#[test]
fn what_is_lost_is_not_guessed() {
    // mov rax,[rax]; mov rax,[rax]: the thread waited for the first, whose base is gone. Where the second reads is known, but is no answer
    for offset in [3, 6] {
        assert_eq!(
            locate("488b00 488b00 90", offset, &registers()),
            Err(Undecoded::Overwritten)
        );
    }
    // mov eax,[rbx+rax*4]: likewise, where only the index is gone
    assert_eq!(
        locate("8b0483 488b13 90", 3, &registers()),
        Err(Undecoded::Overwritten)
    );
    // vmovdqu32 zmm0{k1},[rax]; nop: which elements are read depends on a mask
    assert_eq!(
        locate("62f17e496f00 90", 6, &registers()),
        Err(Undecoded::Vector)
    );
    // vpgatherdd ymm0,[rdi+ymm1*4],ymm2; nop
    assert_eq!(
        locate("c4e26d90048f 90", 6, &registers()),
        Err(Undecoded::Gather)
    );
    // prefetcht0 [rax]; mov rcx,[rdx]: a prefetch waits for nothing
    assert_eq!(
        locate("0f1808 488b0a", 3, &registers()),
        at(Place::At, &[read(0x3000, 8)])
    );
    // Bytes that are no instruction, and an address within one.
    assert_eq!(locate("0606 90", 0, &registers()), Err(Undecoded::Invalid));
    assert_eq!(
        locate("488b00 90", 1, &registers()),
        Err(Undecoded::Invalid)
    );
}

/// A thread that stands at the end of code, its stack at 0x5000: below it lie eight bytes of 0x77, at it `top`.
fn on_stack(hex: &str, top: u64, steps: Steps) -> Result<Located, Undecoded> {
    let mut registers = registers();
    registers.general[5] = Some(0x5008);
    registers.general[8] = None;
    let top = top.to_le_bytes();
    let parts = [
        (Address(0x4ff8), [0x77; 8].as_slice()),
        (Address(0x5000), top.as_slice()),
    ];
    let code = bytes(hex);
    // Behind them stands a nop.
    let end = BASE + code.len() as u64 - 1;
    Code::decode(&code, Address(BASE)).locate(
        Address(end),
        &registers,
        &Copies { parts: &parts },
        steps,
    )
}

const BELOW: u64 = 0x7777_7777_7777_7777;

#[test]
fn a_base_that_was_loaded_from_the_stack_is_read_there() {
    // mov rax,[rsp-8]; ...; mov rax,[rax+16]; nop
    let load = |between: &str| format!("488b4424f8 {between} 488b4010 90");
    let found = at(Place::Behind, &[read(BELOW + 16, 8)]);
    // Nothing; mov [rsp-16],rcx; mov [rsp],rcx: neither writes to the slot
    for between in ["", "48894c24f0", "48890c24"] {
        assert_eq!(on_stack(&load(between), 0, Steps::All), found, "{between}");
    }
    // mov eax,[rsp+4]; mov rax,[rax]: 32 bits, the rest is zero. movsxd rax: with their sign
    let top = 0x8765_4321_0000_0000;
    assert_eq!(
        on_stack("8b442404 488b00 90", top, Steps::All),
        at(Place::Behind, &[read(0x8765_4321, 8)])
    );
    assert_eq!(
        on_stack("4863442404 488b00 90", top, Steps::All),
        at(Place::Behind, &[read(0xffff_ffff_8765_4321, 8)])
    );
    // movzx ax,byte [rsp]; mov rax,[rax]: a part of a register says nothing of the rest
    assert_eq!(
        on_stack("660fb60424 488b00 90", 0, Steps::All),
        Err(Undecoded::Overwritten)
    );
    // mov rax,[rsp+8]: beyond what was copied
    assert_eq!(
        on_stack("488b442408 488b00 90", 0, Steps::All),
        Err(Undecoded::Overwritten)
    );
}

#[test]
fn a_slot_that_may_have_been_written_to_is_not_read() {
    let stores = [
        ("mov [rsp-8],rcx", "48894c24f8"),
        ("mov [rsp-4],ecx", "894c24fc"),
        ("mov byte [rsp-1],cl", "884c24ff"),
        ("mov [rbp-16],rcx", "48894df0"),
        ("movups [rsp-16],xmm0", "0f114424f0"),
        ("add qword [rsp-8],1", "48834424f801"),
        ("xchg [rsp-8],rcx", "48874c24f8"),
        ("bts [rsp-64],rcx", "480fab4c24c0"),
        ("stosq", "48ab"),
        ("mov [r8],rcx, r8 unknown", "498908"),
        ("fnsave [rsp-108]", "dd742494"),
        ("vpscatterdd [rsp+zmm1]{k1},zmm2", "62f27d49a0140c"),
    ];
    for (name, store) in stores {
        let code = format!("488b4424f8 {store} 488b4010 90");
        assert_eq!(
            on_stack(&code, 0, Steps::All),
            Err(Undecoded::Overwritten),
            "{name}"
        );
        // Without the look for stores an answer would be given.
        assert_eq!(
            on_stack(&code, 0, Steps::Forgetful),
            at(Place::Behind, &[read(BELOW + 16, 8)]),
            "{name}"
        );
    }
    // mov rax,[rsp-8]; push rcx; mov rax,[rax+16]: the slot is the one that was pushed to
    let pushed = "488b4424f8 51 488b4010 90";
    assert_eq!(
        on_stack(pushed, 0x2000, Steps::All),
        Err(Undecoded::Overwritten)
    );
    assert_eq!(
        on_stack(pushed, 0x2000, Steps::Forgetful),
        at(Place::Behind, &[read(0x2010, 8)])
    );
}

#[test]
fn what_has_no_inverse_is_not_undone() {
    // pop rsp; nop: what it is came from memory. mov eax,fs; mov rax,[rax]; nop: a selector is no base
    for (code, ip) in [("5c 90", 1), ("8ce0 488b00 90", 5)] {
        let said = locate(code, ip, &registers());
        assert_eq!(said, Err(Undecoded::Overwritten), "{code}");
    }
    // std; mov rbx,rsi; movsb; cld; mov rbx,[rbx]; nop: the flag that said which way it moved has been set since
    let said = locate("fd 4889f3 a4 fc 488b1b 90", 9, &registers());
    assert_eq!(said, Err(Undecoded::Overwritten));
}

#[test]
fn a_branch_target_has_no_certain_predecessor() {
    // mov rax,[rbx]; 1: add rdx,1; cmp rdx,rcx; jne 1b; mov rsi,[rdi+8]; nop
    let loop_ = "488b03 4883c201 4839ca 75f7 488b7708 90";
    // At the head of the loop the load before it may be long ago. dx + 1 is not cx: round again, to the end of what is followed.
    assert_eq!(locate(loop_, 3, &registers()), Err(Undecoded::Path));
    // Once dx + 1 is cx the loop ends.
    let mut last = registers();
    last.general[2] = Some(0x1fff);
    assert_eq!(
        locate(loop_, 3, &last),
        at(Place::Ahead, &[read(0x8008, 8)])
    );
    assert_eq!(
        locate(loop_, 16, &registers()),
        at(Place::Behind, &[read(0x8008, 8)])
    );
    // Without the step back there is nothing more in this code.
    let code = Code::decode(&bytes(loop_), Address(BASE));
    assert_eq!(
        code.locate(Address(BASE + 16), &registers(), &Unknown, Steps::NotBehind),
        Err(Undecoded::Path)
    );
}

#[test]
fn the_next_access_is_evaluated() {
    // lea rdi,[rsi+rsi*2]; add rdi,8; test rdi,rdi; je 2f; mov rax,[rdi]; 2: ret
    let hex = "488d3c76 4883c708 4885ff 7403 488b07 c3";
    assert_eq!(
        locate(hex, 0, &registers()),
        at(Place::Ahead, &[read(0x7000 * 3 + 8, 8)])
    );
    let mut r = registers();
    r.general[6] = Some(0);
    assert_eq!(locate(hex, 0, &r), at(Place::Ahead, &[read(8, 8)]));
    // Where the branch is taken the next access is that of the return.
    // test rdi,rdi; je 2f; mov rax,[rdi]; 2: ret with rdi = 0
    r.general[7] = Some(0);
    assert_eq!(
        locate("4885ff 7403 488b07 c3", 0, &r),
        at(Place::Ahead, &[read(0x5000, 8)])
    );
    // call rax: the return address is written below the stack pointer
    assert_eq!(
        locate("ffd0 90", 0, &registers()),
        at(Place::At, &[write(0x5000 - 8, 8)])
    );
    // leave; ret: `leave` reads where rbp points
    assert_eq!(
        locate("c9 c3", 0, &registers()),
        at(Place::At, &[read(0x6000, 8)])
    );
}

#[test]
fn lanes_of_a_gather_are_resolved_where_vectors_are_known() {
    // vpgatherdd ymm0,[rdi+ymm1*4],ymm2 at its beginning, lanes 0 and 3 asked for
    let mut vectors = vec![[0u8; 64]; 16];
    vectors[1][0..4].copy_from_slice(&5i32.to_le_bytes());
    vectors[1][12..16].copy_from_slice(&(-2i32).to_le_bytes());
    vectors[2][3] = 0x80;
    vectors[2][15] = 0x80;
    let mut r = registers();
    r.vectors = Some(Vectors { bytes: vectors });
    assert_eq!(
        locate("c4e26d90048f 90", 0, &r),
        at(Place::At, &[read(0x8000 + 20, 4), read(0x8000 - 8, 4)])
    );
}

#[test]
fn boundaries_are_found_from_anywhere_or_not_at_all() {
    let one = bytes("488b44cb10 4801c2 4883c340 488b53f8 4889d1 48c1e921 4881e1ff000000 488b0ccb");
    let mut code = Vec::new();
    for _ in 0..8 {
        code.extend(&one);
    }
    let first = boundary_before(&code).expect("it settles");
    let decoded = Code::decode(&code[first..], Address(first as u64));
    // From there on the boundaries are those of the code.
    for copy in 1..8 {
        let begins = (copy * one.len()) as u64;
        if begins >= first as u64 {
            assert!(decoded.has_instruction_at(Address(begins)), "{begins}");
        }
    }
    assert_eq!(boundary_before(&code[..20]), None);
    assert_eq!(boundary_before(&[0x06; 100]), None);
}
