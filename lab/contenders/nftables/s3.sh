# Destination NAT by round robin over the endpoints; connection tracking does the way back.
set -e
{peers} run nft -- -f - <<'RULES'
table ip weir_lab {
    chain prerouting {
        type nat hook prerouting priority dstnat;
        ip daddr {virtual_network} tcp dport {listen_port} dnat to numgen inc mod 3 map {
            0 : {endpoint_1}, 1 : {endpoint_2}, 2 : {endpoint_3} }
        ip daddr {virtual} tcp dport {iperf3_port_1} dnat to {endpoint_1}:{iperf3_port}
        ip daddr {virtual} tcp dport {iperf3_port_2} dnat to {endpoint_2}:{iperf3_port}
        ip daddr {virtual} tcp dport {iperf3_port_3} dnat to {endpoint_3}:{iperf3_port}
    }
}
RULES
# The rules end with the network namespace.
exec sleep infinity
