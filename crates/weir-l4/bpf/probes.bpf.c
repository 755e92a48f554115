/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sends health probes the way that clients' packets go: to the listener's address (VIP), by the backend's MAC address or within an
 * outer packet to the backend. A probe is a connection from a socket of this host to the backend's own address. This program
 * rewrites the packets of that socket on their way out, and the VIP's answers and ICMP errors about the probe on their way in, so
 * that the socket, the routes and the firewall of the host see only the backend's address. It is a program of its own and shares
 * no map with the others. */
#include <linux/if_packet.h>

#include "icmp.h"
#include "packet.h"
#include "rewrite.h"
#include "wrap.h"

#define NOT_OURS (-1)
#define DROPPED 2

char license_of_the_program[] SEC("license") = "GPL";

/* A connection of a probe, as seen in a packet: as ProbeKey in weir-l4/src/probes.rs. */
struct probe_key {
	struct address here;
	struct address there;
	__be16 here_port;
	__be16 there_port;
	/* The packet is incoming. */
	__u8 is_answer;
	__u8 zero[3];
};
_Static_assert(sizeof(struct probe_key) == 40, "keep ProbeKey in weir-l4/src/probes.rs equal");

/* How its packets are rewritten: as ProbeWay in weir-l4/src/probes.rs. */
struct probe_way {
	/* The address of the other end: the VIP on the way out, the backend's own on the way in. */
	struct address becomes;
	/* The source of outer packets. */
	struct address outer_source;
	/* Valid until this CLOCK_MONOTONIC time, so that packets of a killed process are not rewritten for
	 * long. */
	__u64 until_ns;
	/* Packets so far. */
	__u32 packets;
	/* It is sent in an outer packet to the backend. */
	__u32 is_wrapped;
};
_Static_assert(sizeof(struct probe_way) == 48, "keep ProbeWay in weir-l4/src/probes.rs equal");

/* Two for each probe in progress. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct probe_key);
	__type(value, struct probe_way);
} probes SEC(".maps");

static __always_inline bool is_segment(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && packet->fragment == WHOLE && !packet->fault;
}

static __always_inline struct probe_way *probe_of(const struct probe_key *key)
{
	struct probe_way *way = bpf_map_lookup_elem(&probes, key);

	return way && way->until_ns > bpf_ktime_get_ns() ? way : NULL;
}

/* At the egress of an interface. */
SEC("classifier")
int ask_vip(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct probe_key key = {};
	struct flow to = {};
	struct probe_way *way;

	/* Forwarded packets have no socket. */
	if (!skb->sk || is_of_vlan(skb) || !parse(skb, &packet) || !is_segment(&packet))
		return NOT_OURS;
	key.here = packet.source;
	key.there = packet.destination;
	key.here_port = packet.source_port;
	key.there_port = packet.destination_port;
	way = probe_of(&key);
	if (!way)
		return NOT_OURS;
	to.source = packet.source;
	to.destination = way->becomes;
	to.source_port = packet.source_port;
	to.destination_port = packet.destination_port;
	if (rewrite(skb, &packet, &to))
		return DROPPED;
	if (way->is_wrapped) {
		to.source = way->outer_source;
		to.destination = packet.destination;
		if (wrap(skb, &packet, &to))
			return DROPPED;
	}
	__sync_fetch_and_add(&way->packets, 1);
	return NOT_OURS;
}

/* Rewrites an answer of the VIP for the probe's socket. */
__noinline int hear_answer(struct __sk_buff *skb, const struct packet *packet)
{
	struct probe_key key = { .is_answer = 1 };
	struct flow from = {};
	struct probe_way *way;

	if (!packet)
		return NOT_OURS;
	key.here = packet->destination;
	key.there = packet->source;
	key.here_port = packet->destination_port;
	key.there_port = packet->source_port;
	way = probe_of(&key);
	if (!way)
		return NOT_OURS;
	from.source = way->becomes;
	from.destination = packet->destination;
	from.source_port = packet->source_port;
	from.destination_port = packet->destination_port;
	if (rewrite(skb, packet, &from))
		return DROPPED;
	__sync_fetch_and_add(&way->packets, 1);
	return NOT_OURS;
}

/* Whether an ICMP error says that the quoted packet can't be delivered. "Fragmentation needed" and "packet too big" don't count:
 * the segments of probes fit any link. */
static __always_inline bool says_unreached(struct __sk_buff *skb, const struct packet *packet)
{
	struct icmp_header icmp;

	if (!is_error(skb, packet) || bpf_skb_load_bytes(skb, packet->transport, &icmp, sizeof(icmp)))
		return false;
	if (packet->family == 6)
		return icmp.type != ICMPV6_TOO_BIG;
	return icmp.type != ICMP_SOURCE_QUENCH && (icmp.type != ICMP_DEST_UNREACH || icmp.code != ICMP_FRAG_NEEDED);
}

/* Removes the outer header from the quote of an error that has neither IP options nor ICMP extensions, and adjusts the ICMP
 * checksum. */
static __always_inline long bare_quote4(struct __sk_buff *skb, const struct packet *packet)
{
	struct {
		struct iphdr ip;
		struct icmp_header icmp;
		struct iphdr outer;
	} head;
	__u64 sum;

	if (packet->transport != ETH_HLEN + sizeof(head.ip) || bpf_skb_load_bytes(skb, ETH_HLEN, &head, sizeof(head)))
		return 1;
	sum = (__u16)~head.icmp.sum +
	      (__u16)~fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)&head.outer, sizeof(head.outer), 0));
	head.icmp.sum = ~fold(sum);
	head.ip.tot_len = bpf_htons(bpf_ntohs(head.ip.tot_len) - sizeof(head.outer));
	head.ip.check = 0;
	head.ip.check = ~fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)&head.ip, sizeof(head.ip), 0));
	return bpf_skb_adjust_room(skb, -(__s32)sizeof(head.outer), BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN, &head, sizeof(head.ip) + sizeof(head.icmp), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline long bare_quote6(struct __sk_buff *skb, const struct packet *packet)
{
	struct {
		struct ipv6hdr ip;
		struct icmp_header icmp;
		struct ipv6hdr outer;
	} head;
	__u32 bytes;
	__u64 sum;

	if (packet->transport != ETH_HLEN + sizeof(head.ip) || bpf_skb_load_bytes(skb, ETH_HLEN, &head, sizeof(head)))
		return 1;
	/* The checksum covers the length of the message (RFC 8200 §8.1). */
	bytes = bpf_ntohs(head.ip.payload_len);
	sum = (__u16)~head.icmp.sum +
	      (__u16)~fold((__u32)bpf_csum_diff(NULL, 0, (__be32 *)&head.outer, sizeof(head.outer), 0));
	sum += (__u16)~bpf_htons(bytes) + bpf_htons(bytes - sizeof(head.outer));
	head.icmp.sum = ~fold(sum);
	head.ip.payload_len = bpf_htons(bytes - sizeof(head.outer));
	return bpf_skb_adjust_room(skb, -(__s32)sizeof(head.outer), BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN, &head, sizeof(head.ip) + sizeof(head.icmp), BPF_F_RECOMPUTE_CSUM);
}

__noinline int bare_quote(struct __sk_buff *skb, const struct packet *packet)
{
	if (!packet)
		return 1;
	return (packet->family == 4 ? bare_quote4(skb, packet) : bare_quote6(skb, packet)) != 0;
}

/* Rewrites an ICMP error of a router or the backend about a packet of a probe, with or without the outer header, to quote the
 * packet that the probe's socket sent. The connection then fails at once. */
__noinline int hear_error(struct __sk_buff *skb, struct packet *packet)
{
	struct probe_key key = { .is_answer = 1 };
	struct quoted quoted = {};
	struct flow to = {};
	struct probe_way *way;
	__u32 outer = 0;

	if (!packet || packet->fragment || packet->fault || !says_unreached(skb, packet))
		return NOT_OURS;
	quoted.header = packet->transport + ICMP_HEADER;
	if (!read_quoted(skb, packet, &quoted)) {
		if (quoted.opposite.protocol != IPPROTO_IPIP && quoted.opposite.protocol != IPPROTO_IPV6)
			return NOT_OURS;
		outer = packet->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
		if (quoted.transport != quoted.header + outer)
			return NOT_OURS;
		to.source = quoted.opposite.source;
		to.destination = quoted.opposite.destination;
		quoted.header += outer;
		if (!read_quoted(skb, packet, &quoted))
			return NOT_OURS;
	} else {
		to.destination = quoted.opposite.destination;
	}
	/* An error is sent to the source of the packet that it quotes; any other is forged. */
	if (quoted.opposite.protocol != IPPROTO_TCP || !same_address(&packet->destination, &to.destination))
		return NOT_OURS;
	key.here = quoted.opposite.destination;
	key.there = quoted.opposite.source;
	key.here_port = quoted.opposite.destination_port;
	key.there_port = quoted.opposite.source_port;
	way = probe_of(&key);
	if (!way || (outer && !same_address(&to.source, &way->becomes)))
		return NOT_OURS;
	to.source = way->becomes;
	to.destination = key.here;
	to.source_port = key.there_port;
	to.destination_port = key.here_port;
	if (outer) {
		if (bare_quote(skb, packet))
			return DROPPED;
		quoted.header -= outer;
		quoted.transport -= outer;
		packet->size -= outer;
	}
	return rewrite_icmp(skb, packet, &quoted, &to) ? DROPPED : NOT_OURS;
}

/* Runs at the ingress of an interface. */
SEC("classifier")
int hear_vip(struct __sk_buff *skb)
{
	struct packet packet = {};

	if (skb->pkt_type != PACKET_HOST || is_of_vlan(skb) || !parse(skb, &packet))
		return NOT_OURS;
	if (packet.protocol == IPPROTO_ICMP || packet.protocol == IPPROTO_ICMPV6)
		return hear_error(skb, &packet);
	return is_segment(&packet) ? hear_answer(skb, &packet) : NOT_OURS;
}
