//! Compiles the packet program. It is part of the binary: who runs Weir needs no compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let directory = Path::new("bpf");
    println!("cargo::rerun-if-changed={}", directory.display());
    println!("cargo::rerun-if-env-changed=WEIR_CLANG");
    compile(directory, "nat.bpf.c", "nat.bpf.o", &[]);
    // The same program, to explain by.
    compile(directory, "nat.bpf.c", "nat_explains.bpf.o", &["-DWEIR_EXPLAINS"]);
    compile(directory, "decap.bpf.c", "decap.bpf.o", &[]);
    compile(directory, "probes.bpf.c", "probes.bpf.o", &[]);
}

fn compile(directory: &Path, source: &str, object: &str, more: &[&str]) {
    let object = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(object);
    let clang = std::env::var("WEIR_CLANG").unwrap_or_else(|_| "clang-14".to_owned());
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    // Its debugging information, by which the kernel names lines, is part of the binary too, and names no
    // path of the machine that built it.
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    command.arg(format!("-ffile-prefix-map={here}=weir-l4"));
    // The program's kind of function has the packet as an argument whether it reads it or not.
    command.args(["-Wno-unused-parameter"]);
    command.args(more);
    // `asm/types.h` lies in the directory of the machine's own architecture.
    command.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    command.arg("-c").arg(directory.join(source)).arg("-o").arg(&object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(_) => panic!(
            "the packet program does not compile; clang 14 and libbpf-dev are needed (xtask/setup.sh build)"
        ),
        Err(error) => panic!(
            "`{clang}` can't be run: {error}; clang 14 is needed (xtask/setup.sh build), WEIR_CLANG names another"
        ),
    }
}
