# Debian roots to run things in, apart from the machine's own packages. Sourced by lab/peers and xtask/bare.sh.
# shellcheck shell=bash

# Where Debian keeps its mirror, in one of two forms: stanzas with a line `URIs:`, or lines of `deb [options] URI suite …`.
debian_sources=(/etc/apt/sources.list.d/debian.sources /etc/apt/sources.list)

# Prints the mirror that this machine uses; it is read when needed so that no host name is kept here. Fails when there is none.
debian_mirror() {
    local uri
    uri=$(cat "${debian_sources[@]}" 2>/dev/null | awk '
        $1 == "URIs:" { print $2; exit }
        $1 == "deb" { sub(/^deb[ \t]+(\[[^]]*\][ \t]+)?/, ""); print $1; exit }' || true)
    [ -n "$uri" ] && printf '%s\n' "$uri"
}

# Removes the root $1, with whatever is still mounted in it.
remove_debian_root() {
    awk -v under="$1/" 'index($2, under) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r point; do
        umount "$point"
    done
    rm -rf --one-file-system "$1"
}

# Makes a root of the suite $1 in $2, with downloads kept in $3 and the output in $4; further words go to debootstrap.
make_debian_root() {
    local suite=$1 directory=$2 packages=$3 log=$4 part=$2.part
    shift 4
    mkdir -p "$packages"
    # A half-made root cannot be trusted; what it had downloaded is kept, so starting over is quick.
    remove_debian_root "$part"
    unshare --mount --propagation private debootstrap --variant=minbase --cache-dir="$packages" "$@" \
        "$suite" "$part" "$(debian_mirror)" >"$log" 2>&1 || return 1
    # A mirror may be a frozen copy whose release file has expired.
    printf 'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n' >"$part/etc/apt/apt.conf.d/80weir"
    # Packages must not start the services they bring.
    printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"
    chmod 755 "$part/usr/sbin/policy-rc.d"
    remove_debian_root "$directory"
    mv "$part" "$directory"
}

# Runs the command $2… inside the root $1, in mount and process namespaces of its own: its mounts end with it, whatever
# happens. /dev is a fresh tmpfs with nodes of its own; binding the machine's /dev would let a package's script replace the
# machine's /dev/null. The root is a mount point, without which what runs in it could not unshare its mounts.
# Words of the form NAME=value before the command are its environment.
inside_debian_root() {
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        root=$1; shift
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount -t sysfs sysfs "$root/sys"
        if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"; fi
        mount -t tmpfs -o mode=755 tmpfs "$root/dev"
        mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/dev/net"
        mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        node() { mknod -m "$2" "$root/dev/$1" c "$3" "$4"; }
        node null 666 1 3; node zero 666 1 5; node full 666 1 7
        node random 666 1 8; node urandom 666 1 9; node tty 666 5 0; node net/tun 666 10 200
        ln -s pts/ptmx "$root/dev/ptmx"
        ln -s /proc/self/fd "$root/dev/fd"
        ln -s /proc/self/fd/0 "$root/dev/stdin"; ln -s /proc/self/fd/1 "$root/dev/stdout"; ln -s /proc/self/fd/2 "$root/dev/stderr"
        exec chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} \
            ${https_proxy:+https_proxy="$https_proxy"} ${GOPROXY:+GOPROXY="$GOPROXY"} "$@"
    ' inside_debian_root "$@"
}
