# Destination NAT by round robin over the endpoints; connection tracking does the way back.
set -e
{peers} run nft -- -f - <<'RULES'
table {ip} weir_lab {
    chain prerouting {
        type nat hook prerouting priority dstnat;
        {ip} daddr {virtual_network} tcp dport {listen_port} dnat to numgen inc mod 3 map {
            0 : {endpoint_1}, 1 : {endpoint_2}, 2 : {endpoint_3} }
        {ip} daddr {virtual_1} tcp dport {iperf3_port} dnat to {bulk_backend_1}
        {ip} daddr {virtual_2} tcp dport {iperf3_port} dnat to {bulk_backend_2}
        {ip} daddr {virtual_3} tcp dport {iperf3_port} dnat to {bulk_backend_3}
    }
}
RULES
# The rules end with the network namespace.
exec sleep infinity
