#!/usr/bin/env bash
# Makes a bare Debian 12 ready: installs the packages that are missing, or says which they are.
#
#   xtask/setup.sh build          what building Weir needs
#   xtask/setup.sh test           what its tests and checks need as well (default)
#
# As root it installs; as anybody else it prints the command to run. It is quick when nothing is missing.
set -euo pipefail

# package | for | why
readonly packages_table='
gcc               | build | the C compiler and linker that Rust and the allocator use
libc6-dev         | build | the C library to link against
make              | build | the entry points
git               | build | cargo and the tidy checks read the tree through it
ca-certificates   | build | crates are fetched over TLS
clang-14          | build | compiles the packet program of the kernel plane
libbpf-dev        | build | the headers of the packet program
curl              | test  | a client of the end-to-end tests, and of the demo
openssl           | test  | makes certificates, and is a TLS client of the end-to-end tests
netcat-openbsd    | test  | a client that half-closes
python3           | test  | clients with parsers of their own
python3-venv      | test  | keeps httpx, a client that speaks HTTP/2, to ourselves
nodejs            | test  | a client whose agent keeps connections
wrk               | test  | a load generator
apache2-utils     | test  | ab, a load generator that speaks HTTP/1.0
strace            | test  | makes system calls fail
libfaketime       | test  | makes the wall clock jump
nghttp2-client    | test  | nghttp and h2load, a client and a load generator that speak HTTP/2
nghttp2-server    | test  | nghttpd, a backend that speaks HTTP/2
pebble            | test  | a certificate authority, for the tests of ACME
golang-go         | test  | builds h2spec, the conformance suite of HTTP/2, and clients
chromium          | test  | a browser
nginx             | test  | does what a page of the guide says Weir does; its service is disabled
haproxy           | test  | does what another page of the guide says Weir does; its service is disabled
nftables          | test  | NAT of the kernel itself, which packets are compared with
perl-base         | test  | sends frames that no socket of ours sends
iproute2          | test  | ip: the lab makes network namespaces and their addresses
util-linux        | test  | prlimit takes descriptors away, unshare gives a test its own files
keepalived        | test  | moves an address between two Weirs; its service is disabled
redis-server      | test  | a backend that is asked in its own protocol; its service is disabled
unbound           | test  | a name server whose answers change; its service is disabled
knot              | test  | a name server that takes signed updates; its service is disabled
gunicorn          | test  | a backend of one worker, which slow clients hold
logrotate         | test  | rotates logs while they are written, as the package says
rsyslog           | test  | a daemon that logs are sent to; its service is disabled
zstd              | test  | a decoder of what is compressed for clients
'

say() { printf 'setup: %s\n' "$*" >&2; }

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

# A program that came from elsewhere than its package (nodejs from a tarball, python from pyenv) serves as well.
there_already() {
    case $1 in
    gcc) command -v cc >/dev/null ;;
    nodejs) command -v node >/dev/null ;;
    git | make | curl | wrk | python3 | strace | openssl | zstd) command -v "$1" >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    golang-go) command -v go >/dev/null ;;
    nghttp2-client) command -v h2load >/dev/null ;;
    nghttp2-server) command -v nghttpd >/dev/null ;;
    *) false ;;
    esac
}

install_packages() {
    local wanted=$1 package for_what why missing=()
    command -v dpkg-query >/dev/null || {
        say "this is no Debian machine: the packages in $0 must be there by other means"
        return 0
    }
    while IFS='|' read -r package for_what why; do
        package=${package// /}
        for_what=${for_what// /}
        [ -n "$package" ] || continue
        [ "$for_what" = build ] || [ "$wanted" = test ] || continue
        there_already "$package" || installed "$package" || missing+=("$package")
    done <<<"$packages_table"
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "these packages are missing; as root run:"
        say "  apt-get install --no-install-recommends ${missing[*]}"
        return 1
    fi
    say "installing ${missing[*]}"
    apt-get -q=2 update >&2 || say "the package lists could not be refreshed; going on with those at hand"
    without_services apt-get -q=2 -o=Dpkg::Use-Pty=0 install -y --no-install-recommends "${missing[@]}" >/dev/null
    # Their packages enable services, which would run at each start of the machine; tests start their own.
    local service
    for service in keepalived nginx haproxy redis-server unbound knot rsyslog; do
        case " ${missing[*]} " in
        *" $service "*) systemctl --quiet disable --now "$service.service" >/dev/null 2>&1 || true ;;
        esac
    done
}

# Runs a command under which no package starts a service (Debian Policy section 9.3.3.1), unless the machine has a rule
# of its own.
without_services() {
    local policy=/usr/sbin/policy-rc.d result=0
    if [ -e "$policy" ]; then
        DEBIAN_FRONTEND=noninteractive "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    DEBIAN_FRONTEND=noninteractive "$@" || result=$?
    rm -f "$policy"
    return "$result"
}

# h2spec is in no Debian package. Its versions, and those of what it is made of, are pinned in tests/h2spec.
install_h2spec() {
    ! command -v h2spec >/dev/null || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "h2spec is missing; as root run:"
        say "  cd tests/h2spec && GOBIN=/usr/local/bin go install github.com/summerwind/h2spec/cmd/h2spec"
        return 1
    fi
    say "building h2spec"
    (cd tests/h2spec && GOBIN=/usr/local/bin go install github.com/summerwind/h2spec/cmd/h2spec)
}

# Clients that no Debian package holds go into the target directory. Both steps are quick when there is nothing new.
install_clients() {
    local clients=${CARGO_TARGET_DIR:-target}/clients
    mkdir -p "$clients/bin"
    clients=$(cd "$clients" && pwd)
    (
        cd tests/go
        go build -o "$clients/bin/nethttp" ./nethttp
        go build -o "$clients/bin/grpchealth" ./grpchealth
        go build -o "$clients/bin/grpc-interop-client" google.golang.org/grpc/interop/client
        go build -o "$clients/bin/grpc-interop-server" google.golang.org/grpc/interop/server
        go build -o "$clients/bin/grpc-benchmark-client" google.golang.org/grpc/benchmark/client
        go build -o "$clients/bin/grpc-benchmark-server" google.golang.org/grpc/benchmark/server
    )
    (cd tests/oauth2-proxy && go build -o "$clients/bin/oauth2-proxy" github.com/oauth2-proxy/oauth2-proxy/v7)
    cmp -s tests/python/requirements.txt "$clients/python/requirements.txt" && return 0
    say "installing httpx"
    rm -rf "$clients/python"
    python3 -m venv "$clients/python"
    "$clients/python/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --requirement tests/python/requirements.txt
    cp tests/python/requirements.txt "$clients/python/"
}

# The cluster that MySQL's tests are made before comes from where the lab has it.
install_cluster() {
    ! { lab/peers path mysqld && lab/peers path mysql && lab/peers path mysqlrouter && lab/peers path sysbench && lab/peers path mariadbd; } >/dev/null 2>&1 || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "mysqld, mysql, mysqlrouter, mariadbd, mariadb or sysbench is missing; as root run: lab/peers install mysqld mysql mysqlrouter mariadbd mariadb sysbench"
        return 1
    fi
    say "installing mysqld, mysql, mysqlrouter, mariadbd, mariadb and sysbench"
    lab/peers install mysqld mysql mysqlrouter mariadbd mariadb sysbench
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    command -v cargo >/dev/null || {
        say "Rust $wanted or newer is needed and cargo is not on the PATH, nor in ~/.cargo/bin"
        say "get it with rustup (https://rustup.rs); Debian 12's own package is too old"
        return 1
    }
    found=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        say "Rust $wanted or newer is needed, this is $found; with rustup: rustup toolchain install $wanted"
        return 1
    fi
}

cd "$(dirname "$0")/.."
case ${1:-test} in
build) install_packages build && check_rust ;;
test) install_packages test && install_h2spec && install_clients && install_cluster && check_rust ;;
*)
    say "expected \`build\` or \`test\`, found \`$1\`"
    exit 2
    ;;
esac
