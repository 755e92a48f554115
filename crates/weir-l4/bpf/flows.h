/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Flows: found, opened, followed through TCP's states. */
#ifndef WEIR_FLOWS_H
#define WEIR_FLOWS_H

#include "choose.h"
#include "maps.h"
#include "packet.h"
#include "trace.h"

/* Ports of a client that are tried when its own is taken at the backend. */
#define PORT_TRIES 16

static __always_inline void key_of(struct flow_key6 *key, const struct packet *packet)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->source_port = packet->source_port;
	key->destination_port = packet->destination_port;
	key->protocol = packet->protocol;
}

static __always_inline void narrow(struct flow_key4 *key, const struct flow_key6 *wide)
{
	key->source = wide->source.words[3];
	key->destination = wide->destination.words[3];
	key->source_port = wide->source_port;
	key->destination_port = wide->destination_port;
	key->protocol = wide->protocol;
}

/* Each family has two tables of flows: a first packet opens one among those that are opening, and the third of the
 * handshake moves it among those that are settled. See opening.h. */
static __always_inline struct flow *find_settled(const struct flow_key6 *key, __u8 family)
{
	struct flow_key4 key4 = {};

	if (family == 6)
		return bpf_map_lookup_elem(&flows6, key);
	narrow(&key4, key);
	return bpf_map_lookup_elem(&flows4, &key4);
}

static __always_inline struct flow *find_opening(const struct flow_key6 *key, __u8 family)
{
	struct flow_key4 key4 = {};

	if (family == 6)
		return bpf_map_lookup_elem(&opening6, key);
	narrow(&key4, key);
	return bpf_map_lookup_elem(&opening4, &key4);
}

static __always_inline struct flow *find(const struct flow_key6 *key, __u8 family)
{
	struct flow *flow = find_settled(key, family);

	return flow ? flow : find_opening(key, family);
}

static __always_inline long insert_opening(const struct flow_key6 *key, const struct flow *flow, __u8 family,
					   __u64 how)
{
	struct flow_key4 key4 = {};

	if (EXPLAINS)
		return how == BPF_NOEXIST && find_opening(key, family) ? -1 : 0;
	if (family == 6)
		return bpf_map_update_elem(&opening6, key, flow, how);
	narrow(&key4, key);
	return bpf_map_update_elem(&opening4, &key4, flow, how);
}

static __always_inline void forget_settled(const struct flow_key6 *key, __u8 family)
{
	struct flow_key4 key4 = {};

	if (EXPLAINS)
		return;
	if (family == 6) {
		bpf_map_delete_elem(&flows6, key);
		return;
	}
	narrow(&key4, key);
	bpf_map_delete_elem(&flows4, &key4);
}

static __always_inline void forget_opening(const struct flow_key6 *key, __u8 family)
{
	struct flow_key4 key4 = {};

	if (EXPLAINS)
		return;
	if (family == 6) {
		bpf_map_delete_elem(&opening6, key);
		return;
	}
	narrow(&key4, key);
	bpf_map_delete_elem(&opening4, &key4);
}

static __always_inline void forget(const struct flow_key6 *key, __u8 family)
{
	forget_settled(key, family);
	forget_opening(key, family);
}

/* The key by which the other direction of a flow is found. */
static __always_inline void other_key(struct flow_key6 *key, const struct flow *flow, __u8 protocol)
{
	key->source = flow->destination;
	key->destination = flow->source;
	key->source_port = flow->destination_port;
	key->destination_port = flow->source_port;
	key->protocol = protocol;
}

static __always_inline void count_open(__u32 backend, __s64 change)
{
	__u64 *open = bpf_map_lookup_elem(&open_flows, &backend);

	if (open && !EXPLAINS)
		__sync_fetch_and_add(open, change);
}

/* The other direction of a flow of TCP, where that is remembered. */
static __always_inline struct flow *other_way(const struct flow *flow, __u8 family)
{
	struct flow_key6 key = {};
	struct flow *other;

	other_key(&key, flow, IPPROTO_TCP);
	other = find(&key, family);
	/* The client has used its port past the listener since: the answers of this flow are over. */
	return other && other->direction != DIRECT ? other : NULL;
}

/* Both sides have ended it, or one has broken it off, which both directions are told. */
__noinline int is_over(const struct flow *flow, __u8 family)
{
	struct flow *other;

	if (!flow)
		return 0;
	if (flow->seen & SEEN_RST || !(flow->seen & SEEN_FIN))
		return flow->seen & SEEN_RST;
	other = other_way(flow, family);
	return !other || other->seen & (SEEN_FIN | SEEN_RST);
}

/* Notes a FIN or a RST; the flow counts as open no more when that ends it. */
__noinline int end(struct flow *flow, __u8 seen, __u8 family)
{
	struct flow *other;
	int was_over;

	if (!flow)
		return 0;
	was_over = is_over(flow, family);
	flow->seen |= seen;
	if (seen & SEEN_RST) {
		other = other_way(flow, family);
		if (other)
			other->seen |= SEEN_RST;
	}
	if (!was_over && is_over(flow, family))
		count_open(flow->backend, -1);
	return 0;
}

/* Notes a packet of a flow. */
static __always_inline void follow(struct flow *flow, const struct packet *packet)
{
	__u32 now = packet->now;
	__u8 seen = 0;

	if (EXPLAINS)
		return;
	/* Not with every packet: a cache line that is written is one that the other processors must fetch. */
	if (flow->last_tick != now)
		flow->last_tick = now;
	if (packet->protocol != IPPROTO_TCP || packet->fragment == LATER_FRAGMENT)
		return;
	if (packet->tcp_flags & TCP_RST)
		seen |= SEEN_RST;
	if (packet->tcp_flags & TCP_FIN)
		seen |= SEEN_FIN;
	seen |= packet->tcp_flags & TCP_SYN ? SEEN_SYN : SEEN_DATA;
	if ((flow->seen & seen) == seen)
		return;
	if (seen & ~flow->seen & (SEEN_RST | SEEN_FIN))
		end(flow, seen, packet->family);
	else
		flow->seen |= seen;
}

/* What packets of a flow to a backend become. */
static __always_inline void to_backend(struct flow *flow, const struct packet *packet, const struct backend *backend,
				       __u32 number)
{
	flow->source = packet->source;
	flow->source_port = packet->source_port;
	flow->destination = backend->address;
	flow->destination_port = backend->port ? backend->port : packet->destination_port;
	flow->backend = number;
	flow->generation = backend->generation;
	flow->last_tick = packet->now;
	flow->direction = TO_BACKEND;
	flow->seen = packet->tcp_flags & TCP_SYN ? SEEN_SYN : SEEN_DATA;
	flow->next_hop.interface = backend->interface;
}

/* Whether it is the way back of the same flow: of an earlier time, when it ends anew or the table let the way there go. */
static __always_inline bool is_same_way(const struct flow *held, const struct flow *back)
{
	return held->direction == TO_CLIENT && held->source_port == back->source_port &&
	       held->destination_port == back->destination_port && same_address(&held->source, &back->source);
}

/* Remembers both directions of a flow, among those that are opening; `flow` is the one to the backend, and its source
 * port becomes another where a flow of the same client by another listener has it. 0, or a drop verdict. */
__noinline int remember(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct flow_key6 key = {};
	struct flow back = {};
	__u32 port;

	if (!packet || !flow)
		return DROP_NO_PORT;
	back.source = packet->destination;
	back.source_port = packet->destination_port;
	back.destination = packet->source;
	back.destination_port = packet->source_port;
	back.backend = flow->backend;
	back.generation = flow->generation;
	back.listener = flow->listener;
	back.last_tick = flow->last_tick;
	back.direction = TO_CLIENT;
	back.is_opening = 1;
	back.next_hop.interface = skb->ifindex;
	flow->is_opening = 1;
	port = bpf_ntohs(packet->source_port);
	other_key(&key, flow, packet->protocol);
	for (int attempt = 0; attempt < PORT_TRIES; attempt++) {
		struct flow *held = find_settled(&key, packet->family);

		if (held && is_same_way(held, &back)) {
			forget_settled(&key, packet->family);
			held = NULL;
		}
		if (!held) {
			if (!insert_opening(&key, &back, packet->family, BPF_NOEXIST))
				goto forward;
			held = find_opening(&key, packet->family);
			if (held && is_same_way(held, &back)) {
				insert_opening(&key, &back, packet->family, BPF_ANY);
				goto forward;
			}
		}
		port = 1024 + (port * 40503 + 12345 + attempt) % 64512;
		key.destination_port = bpf_htons(port);
	}
	return DROP_NO_PORT;
forward:
	if (key.destination_port != packet->source_port)
		note(TRACE_PORT, bpf_ntohs(key.destination_port));
	flow->source_port = key.destination_port;
	key_of(&key, packet);
	/* From the stack: Linux 6.1 stores nothing that an argument points to. */
	back = *flow;
	if (insert_opening(&key, &back, packet->family, BPF_ANY))
		return DROP_SHED;
	count_open(flow->backend, 1);
	return 0;
}

#endif
