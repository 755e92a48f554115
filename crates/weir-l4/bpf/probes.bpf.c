/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sends health probes of backends on the path of clients' packets: to the listener's address (VIP), by the
 * backend's MAC address or in an outer packet to the backend. A probe is a connection of a socket of this
 * host to the backend's own address. Its packets are rewritten on their way out, and the answers of the
 * VIP on their way in, so that the socket, the routes and the firewall of the host see only the backend's
 * address. A separate program, which shares no map with the others. */
#include <linux/if_packet.h>

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

/* At the ingress of an interface. */
SEC("classifier")
int hear_vip(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct probe_key key = {};
	struct flow from = {};
	struct probe_way *way;

	if (skb->pkt_type != PACKET_HOST || is_of_vlan(skb) || !parse(skb, &packet) || !is_segment(&packet))
		return NOT_OURS;
	key.here = packet.destination;
	key.there = packet.source;
	key.here_port = packet.destination_port;
	key.there_port = packet.source_port;
	key.is_answer = 1;
	way = probe_of(&key);
	if (!way)
		return NOT_OURS;
	from.source = way->becomes;
	from.destination = packet.destination;
	from.source_port = packet.source_port;
	from.destination_port = packet.destination_port;
	if (rewrite(skb, &packet, &from))
		return DROPPED;
	__sync_fetch_and_add(&way->packets, 1);
	return NOT_OURS;
}
