# Everything one does with this repository. `make` without a target lists them.

# Rust is often installed without its programs being on the PATH.
export PATH := $(PATH):$(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo build dist test check lint bare bench lab kernels connectors peers docs fuzz

help:                ## this list
	@sed -n 's/^\([a-z]*\): .*## /  make \1\t/p' Makefile | expand -t 18

setup:               ## install what a bare Debian 12 lacks (as root), or say what it is
	@xtask/setup.sh

demo: build          ## build and run the demo: three backends, a balancer before them, a curl to try
	@target=$${CARGO_TARGET_DIR:-target}; exec $$target/release/weir demo

build:               ## build target/release/weir
	@xtask/setup.sh build
	cargo build --release --package weir

test:                ## lint, build and run every test; ends with `N passed, M failed`
	@xtask/setup.sh build
	@cargo build --quiet --package xtask || { echo '0 passed, 1 failed'; exit 1; }
	@cargo xtask ci

check: setup         ## before a commit: formatting, lints, and the tests of what differs from main
	@cargo build --quiet --package xtask || { echo '0 passed, 1 failed'; exit 1; }
	@cargo xtask check

lint: setup          ## rustfmt, clippy with warnings as errors, the house rules
	@cargo xtask lint

bare:                ## try README's commands in a fresh Debian 12 with nothing but make, git, gcc and Rust (as root)
	@xtask/bare.sh

dist: setup          ## build target/dist/weir, optimised for what it did in a training run: what packages hold
	lab/peers install wrk h2load
	@cargo xtask dist

bench: dist          ## measure Weir beside HAProxy and nginx on this machine
	lab/peers install haproxy nginx wrk
	@target=$${CARGO_TARGET_DIR:-target}; cargo run --release --package weir-lab -- bench --weir $$target/dist/weir

lab: $(if $(FULL),dist) ## run the five published comparisons, Weir beside the real programs; FULL=1 runs all of it, as packaged
	@xtask/setup.sh build
	cargo build --release --package weir-lab $(if $(FULL),,--package weir)
	@target=$${CARGO_TARGET_DIR:-target}; $$target/release/weir-lab run s0 s1 s2 s3 s4 \
		--weir $$target/$(if $(FULL),dist,release)/weir $(if $(FULL),--full) $(ARGS)

kernels:             ## test the kernel plane on Linux 6.1, 6.12 and Debian's newest, in QEMU (as root); NAMES=6.1 for one
	@xtask/setup.sh build
	lab/peers install kernel busybox ip qemu
	cargo build --workspace
	WEIR_TEST_SLOW=1 cargo test --workspace --no-run --test packets --test e2e
	lab/kernels $(NAMES)

connectors:          ## run connectors' own suites against MySQL, directly and through Weir, and compare; NAMES=go for one
	@xtask/setup.sh build
	lab/peers install mysqld mysql
	cargo build --package weir
	lab/connectors $(NAMES)

peers:               ## install all load balancers and load generators to measure against (as root)
	lab/peers install

docs:                ## write the generated pages in docs/reference anew
	@xtask/setup.sh build
	@cargo xtask docs

fuzz:                ## run each fuzz target for SECONDS (default 600)
	@xtask/setup.sh build
	@cargo xtask fuzz $(SECONDS)
