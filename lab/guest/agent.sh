# What the guest runs: the lab, which takes its orders from the second serial line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 WEIR_PEERS=/run/peers
stty -F /dev/ttyS1 raw -echo
# Every program is in memory before anyone waits for it: while the only core has nothing to do its clock leaps, so that
# reading from the machine outside could outlast any patience.
{
    cat /run/stage/weir /usr/bin/netserver /usr/bin/netperf /usr/bin/iperf3 /usr/sbin/haproxy >/dev/null
    haproxy -v; iperf3 --version; nft --version; ipvsadm --version; netperf -V
} </dev/null >/dev/null 2>&1
exec /run/stage/weir-lab guest-agent --lab /run/stage/lab --weir /run/stage/weir </dev/ttyS1 >/dev/ttyS1
