# What the guest of lab/kernels runs: the test binaries, twice; what they say goes to the second serial line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 WEIR_BIN=/run/stage/weir
exec </dev/null >/dev/ttyS1 2>&1
mount -t bpf bpf /sys/fs/bpf
chmod 1777 /sys/fs/bpf
cd /tmp
filter=$(cat /run/stage/filter)

# Runs the suite $2 as $1 with the rest as arguments, and says how it went.
suite() {
    local user=$1 name=$2 result
    shift 2
    echo "--- $name as $user"
    "/run/stage/$name" --test-threads=2 "$@" 2>&1 | tee /tmp/said
    result=$(sed -n 's/^test result: [A-Za-z]*\. \([0-9]* passed; [0-9]* failed\).*/\1/p' /tmp/said)
    echo "SUITE $name as $user: ${result:-0 passed; 1 failed}"
}

suite root packets ${filter:+"$filter"}
suite root e2e ${filter:-kernel::}
export WEIR_TEST_CAPABILITIES=bpf,net_admin,perfmon
# Once it is loaded, the program is the same: some of its cases show that it does what it should.
suite nobody packets "${filter:-nat::}"
suite nobody e2e ${filter:-kernel::}
echo 'ALL RUN'
