/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Forwarding: which interface, which neighbour, and whether the packet fits. */
#ifndef WEIR_FORWARD_H
#define WEIR_FORWARD_H

#include "flows.h"
#include "maps.h"
#include "packet.h"

/* Whether the next hop stored in the flow can be used, or how the kernel is asked instead. */
enum way {
	/* The flow contains everything. */
	WAY_KNOWN = 0,
	/* The other end of the interface is in another network namespace of this host. */
	WAY_PEER = 1,
	/* The kernel looks up route and neighbour for this one packet, and resolves the neighbour. */
	WAY_NEIGHBOUR = 2,
	WAY_NONE = 3,
};

static __always_inline bool is_peer(__u32 interface)
{
	return bpf_map_lookup_elem(&local_peers, &interface) != NULL;
}

/* Length of the header that is put in front of a packet. */
static __always_inline __u32 outer_bytes(__u8 family)
{
	return family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* The next hop on a host that does not forward, for which the kernel's look-up returns nothing: by the
 * host's routes. If the main table has none, a backend is reached through the interface stored for it, and
 * a client through the one that its first packet arrived at. With DSR a router would send the packet back
 * to us. */
__noinline int by_routes(struct __sk_buff *skb, struct flow *flow)
{
	struct routed to = { .prefix = 128 };
	struct backend *backend;
	struct way_out *way;
	__u32 interface, mtu = 0;

	if (!flow)
		return WAY_NONE;
	interface = flow->next_hop.interface;
	to.address = flow->destination;
	way = bpf_map_lookup_elem(&ways, &to);
	if (way && way->is_behind_router && flow->forward == FORWARD_DSR)
		return WAY_NONE;
	if (way) {
		interface = way->interface;
	} else if (flow->direction == TO_BACKEND) {
		/* The interface in the flow may be gone: the backend's may have been created again. */
		to.prefix = flow->backend;
		backend = bpf_map_lookup_elem(&backends, &to.prefix);
		if (backend)
			interface = backend->interface;
	}
	/* Not for every packet: a written cache line must be fetched by the other CPUs. */
	if (interface != flow->next_hop.interface)
		flow->next_hop.interface = interface;
	/* The kernel returns no MTU only if the interface is gone. */
	return interface && bpf_check_mtu(skb, interface, &mtu, 0, 0) >= 0 ? WAY_NEIGHBOUR : WAY_NONE;
}

/* Looks up the next hop for the flow's packets, and stores it in the flow. */
__noinline int look_up(struct __sk_buff *skb, struct flow *flow, __u8 family, __u32 routes)
{
	struct bpf_fib_lookup to = {};
	long found;

	if (!flow)
		return WAY_NONE;
	/* With a length the kernel would also check the route's MTU; whether the packet fits is checked
	 * later. */
	to.tot_len = 1;
	to.ifindex = skb->ingress_ifindex ? skb->ingress_ifindex : skb->ifindex;
	if (family == 4) {
		to.family = INET4;
		to.ipv4_src = flow->source.words[3];
		to.ipv4_dst = flow->destination.words[3];
	} else {
		to.family = INET6;
		__builtin_memcpy(to.ipv6_src, &flow->source, 16);
		__builtin_memcpy(to.ipv6_dst, &flow->destination, 16);
	}
	found = bpf_fib_lookup(skb, &to, sizeof(to), 0);
	/* A router would send a packet for the listener's address back to us: the next hop must be a
	 * neighbour. */
	if (flow->forward == FORWARD_DSR && (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) &&
	    (family == 4 ? to.ipv4_dst != flow->destination.words[3]
			 : !same_address((struct address *)to.ipv6_dst, &flow->destination)))
		return WAY_NONE;
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
		flow->next_hop.interface = to.ifindex;
		/* Shares its memory with `tot_len`, which it still contains if no neighbour was found. */
		flow->next_hop.mtu = found == BPF_FIB_LKUP_RET_SUCCESS ? to.mtu_result : 0;
		if (flow->forward == FORWARD_IPIP && flow->next_hop.mtu)
			flow->next_hop.mtu -= outer_bytes(family);
	}
	if (found == BPF_FIB_LKUP_RET_SUCCESS) {
		flow->next_hop.resolved_tick = 0;
		__builtin_memcpy(flow->next_hop.destination_mac, to.dmac, 6);
		__builtin_memcpy(flow->next_hop.source_mac, to.smac, 6);
		flow->next_hop.is_peer = is_peer(to.ifindex);
		flow->next_hop.routes = routes;
		flow->next_hop.resolved_tick = now_tick();
		/* The kernel sends this packet itself: a neighbour that only we used would never be
		 * checked for reachability, and would finally be forgotten. */
		return flow->next_hop.is_peer ? WAY_PEER : WAY_NEIGHBOUR;
	}
	return found != BPF_FIB_LKUP_RET_BLACKHOLE && found != BPF_FIB_LKUP_RET_UNREACHABLE &&
			       found != BPF_FIB_LKUP_RET_PROHIBIT
		       ? by_routes(skb, flow)
		       : WAY_NONE;
}

/* The next hop for a packet of the flow. A look-up is valid for a tick, and until a route changes. */
static __always_inline enum way way_of(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	__u32 zero = 0;
	struct settings *said = bpf_map_lookup_elem(&settings, &zero);
	__u32 routes = said ? said->routes : 0;
	__u32 resolved = flow->next_hop.resolved_tick;

	if (resolved && resolved == packet->now && flow->next_hop.routes == routes)
		return flow->next_hop.is_peer ? WAY_PEER : WAY_KNOWN;
	return look_up(skb, flow, packet->family, routes);
}

/* Length of the Hop-by-Hop header that contains the length of a jumbogram. */
#define JUMBO_BYTES 8

/* Length of the largest IP packet: for a train, whose segments may not have been counted, that of each
 * segment. */
static __always_inline __u32 largest_piece(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 segment = packet->transport - ETH_HLEN + sizeof(struct udphdr) + skb->gso_size;
	__u8 offset;

	if (!skb->gso_size)
		return packet->size;
	if (packet->protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, packet->transport + 12, &offset, 1))
		segment += (offset >> 4) * 4 - sizeof(struct udphdr);
	/* For more than 64 KiB the kernel inserts a header for the length (RFC 2675), which it removes
	 * before it cuts the train. */
	if (packet->size > 0xffff + sizeof(struct ipv6hdr) && packet->family == 6 &&
	    packet->transport == ETH_HLEN + sizeof(struct ipv6hdr) + JUMBO_BYTES)
		segment -= JUMBO_BYTES;
	return segment < packet->size ? segment : packet->size;
}

/* Whether a packet fits the outgoing link, for a train, or a flow whose route has no MTU. It uses the
 * packet's own length, as the frame may be padded. `packet->mtu` becomes what the link leaves for the
 * packet itself, without an outer header. */
__noinline int fits_closely(struct __sk_buff *skb, struct packet *packet, const struct flow *flow)
{
	__u32 limit, room;

	if (!packet || !flow)
		return 0;
	limit = flow->next_hop.mtu;
	if (!limit) {
		__u32 mtu = 0;

		room = flow->forward == FORWARD_IPIP ? outer_bytes(packet->family) : 0;
		bpf_check_mtu(skb, flow->next_hop.interface, &mtu, 0, 0);
		limit = mtu > room ? mtu - room : 0;
	}
	packet->mtu = limit;
	return !limit || largest_piece(skb, packet) <= limit;
}

/* Whether a packet fits the outgoing link; for a train, each of its segments. If not, `packet->mtu` is
 * set. */
static __always_inline bool fits(struct __sk_buff *skb, struct packet *packet, const struct flow *flow)
{
	return packet->size <= flow->next_hop.mtu || fits_closely(skb, packet, flow);
}

/* Sends a packet to its next hop. */
static __always_inline int send(struct __sk_buff *skb, const struct flow *flow, enum way way)
{
	__u8 macs[12] __attribute__((aligned(4)));

	untag(skb);
	if (way == WAY_NEIGHBOUR && flow->forward == FORWARD_DSR) {
		struct bpf_redir_neigh to = {};

		/* Not to the packet's destination, which is this host. */
		to.nh_family = is_mapped(&flow->destination) ? INET4 : INET6;
		if (to.nh_family == INET4)
			to.ipv4_nh = flow->destination.words[3];
		else
			__builtin_memcpy(to.ipv6_nh, &flow->destination, 16);
		return bpf_redirect_neigh(flow->next_hop.interface, &to, sizeof(to), 0);
	}
	if (way == WAY_NEIGHBOUR)
		return bpf_redirect_neigh(flow->next_hop.interface, NULL, 0, 0);
	__builtin_memcpy(macs, flow->next_hop.destination_mac, 6);
	__builtin_memcpy(macs + 6, flow->next_hop.source_mac, 6);
	put_words(skb, 0, (__u32 *)macs, sizeof(macs) / 4);
	if (way == WAY_PEER)
		return bpf_redirect_peer(flow->next_hop.interface, 0);
	return bpf_redirect(flow->next_hop.interface, 0);
}

#endif
