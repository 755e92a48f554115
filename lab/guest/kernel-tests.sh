# What the guest of lab/kernels runs: the test binaries, as several users; what they say goes to the second serial line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 WEIR_BIN=/run/stage/weir
exec </dev/null >/dev/ttyS1 2>&1
mount -t bpf bpf /sys/fs/bpf
chmod 1777 /sys/fs/bpf
cd /tmp
# A thousand connections and what is beside them; init has 1,024, of 4,096 at most.
ulimit -n 65536
filter=$(cat /run/stage/filter)
# VLANs and bonds are here: a test that finds none has failed.
export WEIR_TEST_LINKS=here

# Runs the suite $2 as $1 with the rest as arguments, and says how it went.
suite() {
    local user=$1 name=$2 result
    shift 2
    echo "--- $name as $user"
    "/run/stage/$name" --test-threads=2 "$@" 2>&1 | tee /tmp/said
    result=$(sed -n 's/^test result: [A-Za-z]*\. \([0-9]* passed; [0-9]* failed\).*/\1/p' /tmp/said)
    echo "SUITE $name as $user: ${result:-0 passed; 1 failed}"
}

# Crowds and floods count what a busy, emulated machine loses of its own accord; the drop-in, nftables and keepalived
# are not here.
end_to_end() {
    # shellcheck disable=SC2086 # Words to split.
    suite "$1" e2e ${filter:-kernel::} --nocapture --skip kernel::crowd --skip kernel::flood --skip kernel::privileges \
        --skip kernel::beside_nftables --skip kernel::keepalived "${@:2}"
}

# shellcheck disable=SC2086 # Words to split.
suite root packets $filter
end_to_end root
export WEIR_TEST_CAPABILITIES=bpf,net_admin,perfmon
# Once it is loaded, the program is the same: some of its cases show that it does what it should. What takes a capability
# away needs more than the three.
# shellcheck disable=SC2086 # Words to split.
suite nobody packets ${filter:-nat::}
end_to_end nobody --skip refused_without_the_capabilities

# Without CAP_PERFMON it loads, or it is said what it needs.
WEIR_TEST_CAPABILITIES=bpf,net_admin /run/stage/packets nat::the_first_packet_goes_to_the_backend::tcp4 >/tmp/said 2>&1
if grep -q '^test result: ok' /tmp/said; then
    echo 'SUITE loading without CAP_PERFMON: it loads; 1 passed; 0 failed'
elif grep -q 'it needs .*CAP_PERFMON' /tmp/said; then
    echo 'SUITE loading without CAP_PERFMON: it says that it needs it; 1 passed; 0 failed'
else
    cat /tmp/said
    echo 'SUITE loading without CAP_PERFMON: 0 passed; 1 failed'
fi
echo 'ALL RUN'
