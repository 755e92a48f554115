//! How much stack the packet programs take along their deepest chain of calls. The verifier allows 512 bytes;
//! Linux 6.1, the oldest that is supported, rounds each function up to 32 (`check_max_stack_depth`), later
//! ones less. So a local too many is found here, and not first where `make kernels` boots Linux 6.1.

use std::collections::BTreeMap;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};

/// `MAX_BPF_STACK` of the kernel, in bytes.
const STACK: u32 = 512;
/// What Linux 6.1 rounds a function's stack up to, in bytes.
const ROUNDED_TO: u32 = 32;
/// The stack's register.
const FRAME: u8 = 10;

/// A function: what it takes of the stack, and whom it calls.
#[derive(Default)]
struct Function {
    stack: u32,
    calls: Vec<String>,
}

/// One instruction (RFC 9669 §3).
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    target: u8,
    source: u8,
    offset: i16,
    value: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Self {
        Self {
            code: bytes[0],
            target: bytes[1] & 0xf,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            value: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }
}

/// The lowest byte of its stack that a function reaches: by the stack's register itself, and by copies of it.
fn stack_of(code: &[Instruction]) -> u32 {
    let mut lowest = 0;
    // Where in the stack each register points to, if it does. Copies are made where they are used, so that
    // branches do not matter.
    let mut points: [Option<i32>; 11] = [None; 11];
    points[usize::from(FRAME)] = Some(0);
    for instruction in code {
        let (target, source) = (usize::from(instruction.target), usize::from(instruction.source));
        match instruction.code {
            // mov64 from a register, add64 of a value
            0xbf => points[target] = points[source],
            0x07 => points[target] = points[target].map(|at| at + instruction.value),
            // Calls leave nothing in the registers of arguments.
            0x85 => points[..6].fill(None),
            code => {
                let base = match code & 7 {
                    // ldx; st and stx
                    1 => points[source],
                    2 | 3 => points[target],
                    _ => None,
                };
                if let Some(at) = base {
                    lowest = lowest.min(at + i32::from(instruction.offset));
                }
                if matches!(code & 7, 0 | 1 | 4 | 7) {
                    points[target] = None;
                }
            }
        }
        lowest = points[..10].iter().flatten().fold(lowest, |lowest, at| lowest.min(*at));
    }
    lowest.unsigned_abs()
}

/// The functions of an object, by name.
fn functions(object: &object::File) -> BTreeMap<String, Function> {
    let mut found = BTreeMap::new();
    for symbol in object.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let section =
            object.section_by_index(symbol.section_index().expect("a function lies in a section")).unwrap();
        let (first, end) = (symbol.address(), symbol.address() + symbol.size());
        let data = section.data().unwrap();
        let code: Vec<Instruction> =
            data[first as usize..end as usize].chunks_exact(8).map(Instruction::read).collect();
        let mut function = Function { stack: stack_of(&code), calls: Vec::new() };
        // By a relocation: what lies in another section, or is global; and callbacks, whose address is
        // loaded.
        for (at, relocation) in section.relocations().filter(|(at, _)| (first..end).contains(at)) {
            let instruction = Instruction::read(&data[at as usize..]);
            let RelocationTarget::Symbol(to) = relocation.target() else { continue };
            let to = object.symbol_by_index(to).unwrap();
            let in_text = to.section_index().is_some_and(|index| {
                object.section_by_index(index).unwrap().kind() == object::SectionKind::Text
            });
            if !in_text {
                continue;
            }
            // Of a section's symbol: the value counts in instructions behind this one for calls, in bytes for
            // addresses.
            let within = match (to.kind(), instruction.code) {
                (SymbolKind::Section, 0x85) => (i64::from(instruction.value) + 1) * 8,
                (SymbolKind::Section, _) => i64::from(instruction.value),
                _ => to.address() as i64,
            };
            function.calls.push(name_at(object, to.section_index(), within));
        }
        // Without one: within a section.
        let relocated: Vec<u64> = section.relocations().map(|(at, _)| at).collect();
        for (index, instruction) in code.iter().enumerate() {
            let at = first + index as u64 * 8;
            if instruction.code == 0x85 && instruction.source == 1 && !relocated.contains(&at) {
                let to = at as i64 + (i64::from(instruction.value) + 1) * 8;
                function.calls.push(name_at(object, symbol.section_index(), to));
            }
        }
        found.insert(symbol.name().unwrap().to_owned(), function);
    }
    found
}

fn name_at(object: &object::File, section: Option<object::SectionIndex>, address: i64) -> String {
    object
        .symbols()
        .find(|symbol| {
            symbol.kind() == SymbolKind::Text
                && symbol.size() > 0
                && symbol.section_index() == section
                && symbol.address() as i64 == address
        })
        .map_or_else(
            || panic!("no function at {address} of {section:?}"),
            |symbol| symbol.name().unwrap().to_owned(),
        )
}

/// The deepest chain of calls from a function, and its stack as Linux 6.1 counts it.
fn deepest(functions: &BTreeMap<String, Function>, from: &str) -> (u32, Vec<String>) {
    let function = &functions[from];
    let (below, mut chain) =
        function.calls.iter().map(|call| deepest(functions, call)).max().unwrap_or_default();
    let own = function.stack.max(1).next_multiple_of(ROUNDED_TO);
    chain.insert(0, format!("{from} {own}"));
    (own + below, chain)
}

#[test]
fn linux_6_1_allows_what_the_programs_take_of_the_stack() {
    let mut programs = 0;
    for entry in std::fs::read_dir(Path::new(env!("OUT_DIR"))).expect("the build script's directory") {
        let path = entry.expect("an entry").path();
        if !path.to_string_lossy().ends_with(".bpf.o") {
            continue;
        }
        let bytes = std::fs::read(&path).expect("an object");
        let object = object::File::parse(&*bytes).expect("ELF");
        let functions = functions(&object);
        for name in functions.keys() {
            let (stack, chain) = deepest(&functions, name);
            if is_entry(&object, name) {
                programs += 1;
                println!("{}: {stack} of {STACK}: {}", path.display(), chain.join(" > "));
            }
            assert!(stack <= STACK, "{}: {stack} bytes of stack: {}", path.display(), chain.join(" > "));
        }
    }
    assert!(programs >= 2, "{programs} programs");
}

/// Whether the kernel begins with this function: it lies in a section of its own kind.
fn is_entry(object: &object::File, name: &str) -> bool {
    let symbol = object.symbols().find(|symbol| symbol.name() == Ok(name)).expect("its symbol");
    let section = object.section_by_index(symbol.section_index().expect("its section")).expect("its section");
    section.name() != Ok(".text")
}
