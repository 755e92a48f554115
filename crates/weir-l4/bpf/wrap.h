/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Encapsulates a packet: IPv4 in IPv4 (RFC 2003), IPv6 in IPv6 (RFC 2473). */
#ifndef WEIR_WRAP_H
#define WEIR_WRAP_H

#include "packet.h"

#define OUTER_HOPS 64

/* The length field for a header. A train may be longer before the kernel cuts it: then it is 0, as the
 * kernel has it, which sets that of each segment. */
static __always_inline __be16 length_of(__u32 bytes)
{
	return bytes <= 0xffff ? bpf_htons(bytes) : 0;
}

/* Routers must not fragment the outer packet: a backend that decapsulates with a BPF program can't
 * reassemble fragments. */
static __always_inline long wrap_ip4(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct iphdr outer = {};

	/* DSCP, ECN (RFC 6040 §4.1) and the identification stay. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &outer, offsetof(struct iphdr, frag_off)))
		return 1;
	outer.version = 4;
	outer.ihl = 5;
	outer.tot_len = length_of(packet->size + sizeof(outer));
	outer.frag_off = bpf_htons(0x4000);
	outer.ttl = OUTER_HOPS;
	outer.protocol = IPPROTO_IPIP;
	outer.saddr = flow->source.words[3];
	outer.daddr = flow->destination.words[3];
	outer.check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)&outer, sizeof(outer), 0));
	return bpf_skb_adjust_room(skb, sizeof(outer), BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline long wrap_ip6(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct ipv6hdr outer = {};

	/* Version, traffic class and flow label stay. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &outer, 4))
		return 1;
	outer.payload_len = length_of(packet->size);
	outer.nexthdr = IPPROTO_IPV6;
	outer.hop_limit = OUTER_HOPS;
	__builtin_memcpy(&outer.saddr, &flow->source, 16);
	__builtin_memcpy(&outer.daddr, &flow->destination, 16);
	return bpf_skb_adjust_room(skb, sizeof(outer), BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM);
}

/* Encapsulates a packet for its flow's backend. */
__noinline int wrap(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	if (!packet || !flow)
		return 1;
	return (packet->family == 4 ? wrap_ip4(skb, packet, flow) : wrap_ip6(skb, packet, flow)) != 0;
}

#endif
