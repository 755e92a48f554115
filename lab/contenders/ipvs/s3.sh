# Masquerading (NAT) with the `rr` scheduler, as in the publication. Each stream of the load has a virtual address of
# its own, so each is a service; they begin with different endpoints, or the first stream of all would go to one.
set -e
virtual={virtual}
{
    echo "-A -t {virtual}:{iperf3_port_1} -s rr"
    echo "-a -t {virtual}:{iperf3_port_1} -r {endpoint_1}:{iperf3_port} -m"
    echo "-A -t {virtual}:{iperf3_port_2} -s rr"
    echo "-a -t {virtual}:{iperf3_port_2} -r {endpoint_2}:{iperf3_port} -m"
    echo "-A -t {virtual}:{iperf3_port_3} -s rr"
    echo "-a -t {virtual}:{iperf3_port_3} -r {endpoint_3}:{iperf3_port} -m"
    # The last service is the first stream's, by which the lab tells that all of them are there.
    for stream in $(seq 127 -1 0); do
        service=${virtual%.*}.$((stream + 1)):{listen_port}
        echo "-A -t $service -s rr"
        case $((stream % 3)) in
        0) set -- {backend_1} {backend_2} {backend_3} ;;
        1) set -- {backend_2} {backend_3} {backend_1} ;;
        2) set -- {backend_3} {backend_1} {backend_2} ;;
        esac
        for endpoint; do echo "-a -t $service -r $endpoint -m"; done
    done
} | {peers} run ipvsadm -- --restore
# The services end with the network namespace.
exec sleep infinity
