#!/usr/bin/env bash
# Tries what the README says on a bare Debian 12: a fresh root with make, git, gcc and Rust, and nothing else.
#
#   xtask/bare.sh                 clones the last commit into a new root; runs `make test`, `make demo` and the lines of "Install"
#
# Needs root and a few gigabytes in $WEIR_BARE (by default ${XDG_CACHE_HOME:-$HOME/.cache}/weir-bare), where downloaded packages and
# crates stay for the next time; the root itself is made anew. What all commands printed is in its files *.log.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=xtask/debian-root.sh
. xtask/debian-root.sh

readonly release=bookworm
readonly store=${WEIR_BARE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-bare}
readonly root=$store/root
readonly began=$SECONDS

say() { printf 'bare: %s (%d s)\n' "$*" $((SECONDS - began)) >&2; }

failed() {
    say "FAILED: $1; the last lines of $2:"
    tail -n 20 "$2" | sed 's/^/    /' >&2
    exit 1
}

# Runs a step called $1 in the checkout inside the root, as bash commands $2.
step() {
    local log=$store/$1.log
    say "$1: running; output in $log"
    inside_debian_root "$root" CARGO_HOME=/root/cargo bash -euc "cd /root/weir; $2" >"$log" 2>&1 </dev/null || failed "$1" "$log"
    say "$1: $(tail -n 1 "$log")"
}

[ "$(id -u)" -eq 0 ] || { say "making a root needs root"; exit 1; }
debian_mirror >/dev/null || { say "none of ${debian_sources[*]} names a mirror; a Debian machine is expected"; exit 1; }
command -v debootstrap >/dev/null || apt-get -q=2 install -y --no-install-recommends debootstrap debian-archive-keyring >/dev/null
mkdir -p "$store" "$store/cargo"

say "making a root of Debian $release in $root"
make_debian_root $release "$root" "$store/packages" "$store/debootstrap.log" \
    --include=make,git,gcc,libc6-dev,ca-certificates || failed debootstrap "$store/debootstrap.log"
# Names are resolved, and certificates trusted, as on this machine.
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
# Debian's installer writes this file, debootstrap does not.
printf '%s\n' '127.0.0.1 localhost' '::1 localhost ip6-localhost ip6-loopback' >"$root/etc/hosts"
if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    inside_debian_root "$root" update-ca-certificates >/dev/null 2>&1
fi
# Rust as its own installer lays it out, without documentation.
toolchain=$(rustc --print sysroot)
tar --create --directory "$toolchain" --exclude=share/doc bin lib | tar --extract --no-same-owner --directory "$root/usr/local"

git clone --quiet --no-hardlinks . "$root/root/weir"
# Crates that an earlier run has downloaded, and those of this one for the next.
rm -rf "$root/root/cargo"
cp -a "$store/cargo" "$root/root/cargo"
step test 'make test'
rm -rf "$store/cargo" && mkdir "$store/cargo" && cp -a "$root/root/cargo/registry" "$store/cargo/"

step demo '
    make demo >/tmp/demo 2>&1 &
    for _ in $(seq 600); do
        url=$(grep -o "curl -s http://[0-9.:]*/" /tmp/demo | head -n 1 | grep -o "http:.*") && break
        kill -0 $! || { cat /tmp/demo; exit 1; }
        sleep 1
    done
    curl --silent --show-error --fail --retry 20 --retry-connrefused "$url"'

install_lines=$(sed -n '/^## Install$/,/^## /{/^```sh$/,/^```$/{/^```/!p}}' README.md)
[ -n "$install_lines" ] || { say 'README.md has no commands under "Install"'; exit 1; }
mkdir -p "$root/etc/weir"
printf '%s\n' '[listener.web]' 'bind = "127.0.0.1:18080"' '[[listener.web.route]]' 'respond = { status = 204 }' \
    >"$root/etc/weir/weir.toml"
step install "
    sudo() { \"\$@\"; }
    { $(printf '%s' "$install_lines" | sed '$!s/$/;/' | tr '\n' ' '); } & # The last line runs until it is ended.
    curl --silent --fail --retry 900 --retry-delay 1 --retry-connrefused http://127.0.0.1:18080/
    weir --version"
say "all of it works on a bare Debian $release"
