# Each virtual address is routed to one endpoint, by turns.
set -e
{
    echo "addr del {virtual}/{bits} dev wire"
    echo "route del local {virtual_network} dev lo"
    stream=0
    for address in {virtual_addresses}; do
        case $((stream % 3)) in
        0) echo "route add $address/{bits} via {endpoint_1}" ;;
        1) echo "route add $address/{bits} via {endpoint_2}" ;;
        2) echo "route add $address/{bits} via {endpoint_3}" ;;
        esac
        stream=$((stream + 1))
    done
} | ip -batch -
# The routes end with the network namespace.
exec sleep infinity
