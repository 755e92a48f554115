# Masquerading (NAT) with the `rr` scheduler, as in the publication. Each stream of the load has a virtual address of
# its own, so each is a service; they begin with different endpoints, or the first stream of all would go to one.
set -e
{
    for service in {bulk_listen_1}=1={bulk_backend_1} {bulk_listen_2}=2={bulk_backend_2} {bulk_listen_3}=3={bulk_backend_3}; do
        echo "-A -t ${service%%=*} -s rr"
        echo "-a -t ${service%%=*} -r ${service##*=} -m"
    done
    # The last service is the first stream's, by which the lab tells that all of them are there.
    stream=128
    for service in $(printf '%s\n' {listens} | tr -d , | tac); do
        stream=$((stream - 1))
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
