/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Encapsulated packets: IPv4 in IPv4 (RFC 2003), IPv6 in IPv6 (RFC 2473); and errors of routers about the
 * outer ones. */
#ifndef WEIR_TUNNEL_H
#define WEIR_TUNNEL_H

#include "answer.h"
#include "forward.h"
#include "icmp.h"
#include "opening.h"
#include "rewrite.h"
#include "wrap.h"

/* Least MTU that is accepted from a router: the minimum of IPv4 and of IPv6 (RFC 791 §3.2, RFC 8200 §5). */
#define LEAST_MTU4 68
#define LEAST_MTU6 1280

/* Sets the source of a flow's outer headers: the listener's address, or the one that the route to the
 * backend prefers. Returns 0 if none is known. */
__noinline int take_source(const struct packet *packet, struct flow *flow, const struct listener *listener)
{
	struct backend *backend;
	struct address *said;
	__u32 index;

	if (!packet || !flow || !listener)
		return 0;
	if (listener->source_count) {
		index = (listener->number * 2 + (packet->family == 6)) * MAX_SOURCES;
		said = bpf_map_lookup_elem(&sources, &index);
		if (!said)
			return 0;
		flow->source = *said;
	} else {
		index = flow->backend;
		backend = bpf_map_lookup_elem(&backends, &index);
		if (!backend)
			return 0;
		flow->source = backend->source;
	}
	return (flow->source.words[0] | flow->source.words[3]) != 0;
}

/* Prepares a packet for a backend whose answers bypass us. */
__noinline int hand_over(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	if (!packet || !flow || age(skb, packet))
		return 1;
	return flow->forward == FORWARD_IPIP ? wrap(skb, packet, flow) : 0;
}

/* Whether an error that quotes neither TCP nor UDP quotes an outer packet. */
static __always_inline bool is_tunnel(const struct quoted *quoted)
{
	return quoted->opposite.protocol == IPPROTO_IPIP || quoted->opposite.protocol == IPPROTO_IPV6;
}

/* Parses the header of the outer packet that an error quotes: puts its addresses into `flow`, and the
 * offset of the inner packet into `quoted`. Returns 0 if it was not sent from here. */
__noinline int read_outer(struct __sk_buff *skb, const struct packet *packet, struct quoted *quoted, struct flow *flow)
{
	__u32 at;

	if (!packet || !quoted || !flow)
		return 0;
	at = packet->transport + ICMP_HEADER;
	if (packet->family == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl != 5 ||
		    ip.protocol != IPPROTO_IPIP || ip.frag_off & bpf_htons(0x3fff))
			return 0;
		from_ip4(&flow->source, ip.saddr);
		from_ip4(&flow->destination, ip.daddr);
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_IPV6)
			return 0;
		__builtin_memcpy(&flow->source, &ip.saddr, 16);
		__builtin_memcpy(&flow->destination, &ip.daddr, 16);
	}
	quoted->header = at + outer_bytes(packet->family);
	/* An error is sent to the source of the packet that it quotes; any other is a forgery. */
	return same_address(&flow->source, &packet->destination);
}

/* Whether the packet that an error quotes belongs to a flow whose outer packets have the addresses in
 * `flow`. If so, `flow` gets the flow's listener and the next hop to its client, and the number of its
 * backend if that has sent the error itself. */
__noinline int find_wrapped(const struct packet *packet, const struct quoted *quoted, struct flow *flow)
{
	struct flow_key6 key = {};
	struct backend *backend;
	struct flow *found;
	__u32 number;

	if (!packet || !quoted || !flow)
		return 0;
	key.source = quoted->opposite.destination;
	key.destination = quoted->opposite.source;
	key.source_port = quoted->opposite.destination_port;
	key.destination_port = quoted->opposite.source_port;
	key.protocol = quoted->opposite.protocol;
	found = find(&key, packet->family);
	if (!found || found->forward != FORWARD_IPIP || found->direction != TO_BACKEND ||
	    !same_address(&found->source, &flow->source) || !same_address(&found->destination, &flow->destination))
		return 0;
	number = found->backend;
	backend = bpf_map_lookup_elem(&backends, &number);
	flow->backend = backend && same_address(&backend->address, &packet->source) ? number : NOBODY;
	flow->listener = found->listener;
	flow->direction = TO_CLIENT;
	flow->source = key.destination;
	flow->destination = key.source;
	return 1;
}

/* What a client is told about an error concerning the outer packet (RFC 2003 §4, RFC 2473 §8): the MTU
 * less the outer header, and for all other errors that the listener is unreachable. `packet->mtu` is set. */
static __always_inline bool read_error(struct __sk_buff *skb, struct packet *packet, enum error *error)
{
	struct icmp_header icmp;
	__u32 mtu, least = packet->family == 4 ? LEAST_MTU4 : LEAST_MTU6;
	bool is_too_big;

	if (bpf_skb_load_bytes(skb, packet->transport, &icmp, sizeof(icmp)))
		return false;
	is_too_big = packet->family == 4 ? icmp.type == ICMP_DEST_UNREACH && icmp.code == ICMP_FRAG_NEEDED
					 : icmp.type == ICMPV6_TOO_BIG;
	*error = is_too_big ? TOO_BIG : HOST_UNREACHABLE;
	packet->mtu = 0;
	if (!is_too_big)
		return packet->family == 6 || icmp.type != ICMP_SOURCE_QUENCH;
	mtu = bpf_ntohl(icmp.value) & (packet->family == 4 ? 0xffff : 0xffffffff);
	if (mtu < least || mtu > 0xffff)
		return false;
	mtu -= outer_bytes(packet->family);
	packet->mtu = mtu > least ? mtu : least;
	return true;
}

/* Removes everything in front of a client's quoted packet, and parses that. */
__noinline int unwrap(struct __sk_buff *skb, struct packet *packet, struct flow *flow, enum error *error)
{
	struct quoted quoted = {};
	__u32 mtu, quotes;

	if (!packet || !flow || !error || !read_outer(skb, packet, &quoted, flow) ||
	    !read_quoted(skb, packet, &quoted) || !find_wrapped(packet, &quoted, flow))
		return NOT_OURS;
	if (packet->fault)
		return packet->fault;
	/* The client would get an error with a right checksum, which must not cover data that was damaged
	 * on the way here. */
	if (packet->hop_limit <= 1 || !icmp_sum_is_right(skb, packet) || !read_error(skb, packet, error))
		return DROP_ICMP;
	if (!may_answer(ANSWERS_TO_TUNNELS))
		return DROP_UNANSWERED;
	mtu = packet->mtu;
	quotes = quoted.opposite.protocol == IPPROTO_TCP ? QUOTED_TCP : QUOTED_UDP;
	if (quoted.transport + quotes > ETH_HLEN + packet->size ||
	    bpf_skb_adjust_room(skb, ETH_HLEN - (__s32)quoted.header, BPF_ADJ_ROOM_MAC, 0))
		return DROP_ICMP;
	__builtin_memset(packet, 0, sizeof(*packet));
	if (!parse(skb, packet))
		return DROP_ICMP;
	packet->mtu = mtu;
	return VERDICT_ICMP_TO_CLIENT;
}

/* Handles an error of a router on the way to a backend, or of the backend, about an outer packet: the
 * client gets one about its own packet. A backend that itself reports such packets as undeliverable has
 * refused the client. */
__noinline int relay(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	enum error error = TOO_BIG;
	enum way way;
	int verdict, action;

	if (!packet || !flow)
		return NOT_OURS;
	verdict = unwrap(skb, packet, flow, &error);
	if (verdict == NOT_OURS)
		return NOT_OURS;
	if (verdict != VERDICT_ICMP_TO_CLIENT)
		return drop(skb, flow->listener, verdict);
	if (error == HOST_UNREACHABLE && !EXPLAINS)
		count_failure(packet, flow, true);
	if (become_error(skb, packet, error))
		return drop(skb, flow->listener, DROP_NOT_REWRITTEN);
	way = look_up(skb, flow, packet->family, 0);
	if (way == WAY_NONE)
		return drop(skb, flow->listener, DROP_NO_ROUTE);
	action = send(skb, flow, way);
	count(skb, flow->listener, VERDICT_ICMP_TO_CLIENT);
	return action;
}

#endif
