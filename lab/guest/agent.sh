# What the guest runs: the lab, which takes its orders from the second serial line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 WEIR_PEERS=/run/peers
stty -F /dev/ttyS1 raw -echo
exec /run/stage/weir-lab guest-agent --lab /run/stage/lab --weir /run/stage/weir </dev/ttyS1 >/dev/ttyS1
