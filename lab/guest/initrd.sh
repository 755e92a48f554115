#!/usr/bin/env bash
# Makes an initrd for the lab's guest: initrd.sh ROOT OUT [KERNEL]
#
# It holds BusyBox and the modules without which the kernel of the Debian root ROOT (`lab/peers`) cannot mount that root
# over 9p, and those that the lab is in the guest for: IPVS, netem, NAT, clsact, VLANs, bonds. KERNEL is a folder in ROOT
# with the modules of another kernel. Needs root, for chroot(8); what unpacks and packs is the root's own.
set -euo pipefail
root=$1 out=$2 kernel=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
release=$(basename "$(ls -d "$root$kernel"/usr/lib/modules/*/modules.dep | tail -n 1 | xargs dirname)")

mkdir -p "$work"/{bin,proc,sys,dev,mnt,tmp}
cp "$root/usr/bin/busybox" "$work/bin/"
for module in virtio_pci 9pnet_virtio 9p veth sch_netem ip_vs ip_vs_rr nf_conntrack nf_nat nf_tables nft_nat \
    nft_chain_nat nft_numgen nft_ct tun sch_ingress cls_bpf tcp_diag 8021q bonding bridge macvlan; do
    chroot "$root" modprobe ${kernel:+-d "$kernel"} -S "$release" --show-depends "$module" 2>/dev/null || true
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/order"
# In the order in which they depend on each other, so that one pass loads them all.
while read -r file; do
    name=$(basename "$file"); name=${name%%.ko*}.ko
    case $file in
    *.xz) chroot "$root" xz -dc "$file" >"$work/$name" ;;
    *.zst) zstd -qdc "$root$file" >"$work/$name" ;;
    *) cp "$root$file" "$work/$name" ;;
    esac
    echo "$name"
done <"$work/order" >"$work/modules"
rm "$work/order"

cat >"$work/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/$module"; done </modules
share='trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose'
mount -t 9p -o $share root /mnt
mount -t tmpfs tmp /mnt/tmp
mount -t tmpfs run /mnt/run
mount -t proc proc /mnt/proc
mount --bind /sys /mnt/sys
mount --bind /dev /mnt/dev
mkdir -p /mnt/dev/pts /mnt/dev/shm /mnt/run/stage /mnt/run/peers
mount -t 9p -o $share stage /mnt/run/stage
# Where `lab/peers` looks for the root that this is.
ln -s / /mnt/run/peers/sid
ip link set lo up
chroot /mnt /bin/bash /run/stage/agent.sh
sync
echo o >/proc/sysrq-trigger
sleep 5
INIT
chmod 755 "$work/init"
# The machine may lack cpio; this one is linked statically.
(cd "$work" && find . | "$root/usr/bin/busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$out"
