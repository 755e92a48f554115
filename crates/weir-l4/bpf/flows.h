/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Flows: look-up, opening, and TCP state tracking. */
#ifndef WEIR_FLOWS_H
#define WEIR_FLOWS_H

#include "choose.h"
#include "maps.h"
#include "packet.h"
#include "trace.h"

/* Ports of a client that are tried if its own is in use at the backend. */
#define PORT_TRIES 16
/* Number of source ports that full-NAT tries. */
#define SOURCE_TRIES 128

/* Values of `opened`: it wraps around after about half a minute. */
#define OPENED_TIMES 255

static __always_inline __u8 opened_now(void)
{
	return bpf_ktime_get_coarse_ns() / (1 << 27) % OPENED_TIMES + 1;
}

/* The endpoint of a protocol at an address. */
static __always_inline void place_of(struct endpoint *at, const struct address *address, __be16 port, __u8 protocol)
{
	at->address = *address;
	at->port = port;
	at->protocol = protocol;
	at->is_group = 0;
}

static __always_inline void key_of(struct flow_key6 *key, const struct packet *packet)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->source_port = packet->source_port;
	key->destination_port = packet->destination_port;
	key->protocol = packet->protocol;
}

/* The key by which later fragments of a packet find its first one. For IPv6 only the next header of the
 * first fragment counts; others may have another (RFC 8200 §4.5). */
static __always_inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->id = packet->fragment_id;
	key->protocol = packet->family == 4 ? packet->protocol : 0;
}

static __always_inline void narrow(struct flow_key4 *key, const struct flow_key6 *wide)
{
	key->source = wide->source.words[3];
	key->destination = wide->destination.words[3];
	key->source_port = wide->source_port;
	key->destination_port = wide->destination_port;
	key->protocol = wide->protocol;
}

/* Each family has two flow tables: a first packet adds a flow to those that are opening, and the third
 * packet of the handshake moves it to the settled ones. See opening.h. */
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

/* Whether answers of its backend bypass this host. */
static __always_inline bool is_one_way(const struct flow *flow)
{
	return flow->forward >= FORWARD_DSR;
}

/* The other direction of a TCP flow, if it is stored. */
static __always_inline struct flow *other_way(const struct flow *flow, __u8 family)
{
	struct flow_key6 key = {};
	struct flow *other;

	/* The entry that was found belongs to another listener. */
	if (is_one_way(flow))
		return NULL;
	other_key(&key, flow, IPPROTO_TCP);
	other = find(&key, family);
	/* The client has since used its port past the listener, so this flow gets no more answers. */
	return other && other->direction != DIRECT ? other : NULL;
}

/* Whether both sides have ended it, or one has reset it, which is recorded in both directions. */
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

/* Records a FIN or a RST; if that ends the flow it no longer counts as open. */
__noinline int end(struct flow *flow, __u8 seen, __u8 family)
{
	struct flow *other;
	int was_over;

	if (!flow)
		return 0;
	was_over = is_over(flow, family);
	/* It is not visible here whether the backend has ended it as well: the sweep decides by how long
	 * the client keeps acknowledging. */
	if (is_one_way(flow) && seen & ~flow->seen & SEEN_FIN)
		flow->sequence = flow->last_tick;
	flow->seen |= seen;
	if (seen & SEEN_RST) {
		flow->seen &= ~SEEN_AFTER;
		other = other_way(flow, family);
		if (other)
			other->seen = (other->seen | SEEN_RST) & ~SEEN_AFTER;
	}
	if (!was_over && is_over(flow, family))
		count_open(flow->backend, -1);
	return 0;
}

/* A segment after a reset. Hosts ignore a reset whose sequence number they do not expect (RFC 9293
 * §3.10.7.4), which can't be checked here; but a host that has sent or accepted one sends nothing more. So
 * if packets continue in both directions it was not reset; and with DSR, where only the client is seen, if
 * they continue for longer than a straggler would take. */
__noinline int go_on_after_reset(struct flow *flow, __u8 family, int is_later)
{
	struct flow *other;

	if (!flow)
		return 0;
	other = other_way(flow, family);
	flow->seen |= SEEN_AFTER;
	if (is_one_way(flow) ? !is_later : !other || !(other->seen & SEEN_AFTER))
		return 0;
	flow->seen &= ~(SEEN_RST | SEEN_AFTER);
	if (other)
		other->seen &= ~(SEEN_RST | SEEN_AFTER);
	if (!is_over(flow, family))
		count_open(flow->backend, 1);
	return 0;
}

/* Records a packet of a flow. */
static __always_inline void follow(struct flow *flow, const struct packet *packet)
{
	__u32 now = packet->now;
	bool is_later = flow->last_tick != now;
	__u8 seen = 0;

	if (EXPLAINS)
		return;
	/* Not for every packet: a written cache line must be fetched by the other CPUs. */
	if (is_later)
		flow->last_tick = now;
	if (packet->protocol != IPPROTO_TCP || packet->fragment == LATER_FRAGMENT)
		return;
	if (packet->tcp_flags & TCP_RST)
		seen |= SEEN_RST;
	if (packet->tcp_flags & TCP_FIN)
		seen |= SEEN_FIN;
	seen |= packet->tcp_flags & TCP_SYN ? SEEN_SYN : SEEN_DATA;
	if (!(seen & SEEN_RST) && (flow->seen & (seen | SEEN_RST)) == seen)
		return;
	if (seen & SEEN_RST || seen & ~flow->seen & SEEN_FIN)
		end(flow, seen, packet->family);
	else
		flow->seen |= seen;
	if (flow->seen & SEEN_RST && !(seen & (SEEN_RST | SEEN_SYN)))
		go_on_after_reset(flow, packet->family, is_later);
}

/* How packets of a flow to a backend are rewritten. */
static __always_inline void to_backend(struct flow *flow, const struct packet *packet, const struct backend *backend,
				       __u32 number, const struct listener *listener)
{
	flow->source = packet->source;
	flow->source_port = packet->source_port;
	flow->destination = backend->address;
	flow->destination_port = backend->port ? backend->port : packet->destination_port;
	flow->backend = number;
	flow->generation = backend->generation;
	flow->last_tick = packet->now;
	flow->opened = opened_now();
	flow->direction = TO_BACKEND;
	flow->forward = listener->forward;
	flow->seen = packet->tcp_flags & TCP_SYN ? SEEN_SYN : SEEN_DATA;
	flow->next_hop.interface = backend->interface;
}

/* Whether it is the way back of the same flow: it belongs to an earlier one if it ends again, or if the
 * table has evicted the other direction. */
static __always_inline bool is_same_way(const struct flow *held, const struct flow *back)
{
	return held->direction == TO_CLIENT && held->source_port == back->source_port &&
	       held->destination_port == back->destination_port && same_address(&held->source, &back->source) &&
	       same_address(&held->destination, &back->destination);
}

/* A port that distinguishes the answers of a backend. */
struct search {
	/* The key of answers, without the address and port that are being tried. */
	struct flow_key6 key;
	struct flow back;
	/* Position of the listener's addresses in `sources`, and their number: 0 for NAT. */
	__u32 sources;
	__u32 source_count;
	__u32 first_port;
	__u32 ports;
	__u64 hash;
	__u8 family;
	__u8 is_found;
	/* What occupies a port, may be removed for this flow, and was opened first: its age, in units of
	 * `opened`, the attempt that found it, and its port. With full-NAT that is a flow that is opening;
	 * with NAT it is a direct flow past the listeners, which anybody can create. */
	__u8 has_oldest;
	__u8 oldest_age;
	__u16 oldest_attempt;
	__be16 oldest_port;
};

/* The port and address for an attempt with full-NAT. The same flow begins with the same ones, so that a
 * flow that was forgotten in the middle of a connection is made again as it was. */
static __always_inline void next_source(struct search *search, __u32 attempt)
{
	__u64 at = search->hash + attempt;
	__u32 index = search->sources + at % search->source_count;
	struct address *source = bpf_map_lookup_elem(&sources, &index);

	/* A short range is tried from end to end. */
	if (search->ports > SOURCE_TRIES)
		at = mix64(at);
	else
		at /= search->source_count;
	search->key.destination_port = bpf_htons(search->first_port + at % search->ports);
	if (source)
		search->key.destination = *source;
}

static __always_inline void note_age(struct search *search, const struct flow *held, __u32 attempt)
{
	__u8 age = ((__u32)search->back.opened + OPENED_TIMES - held->opened) % OPENED_TIMES;

	if (held->direction != (search->source_count ? TO_CLIENT : DIRECT) ||
	    (search->has_oldest && age <= search->oldest_age))
		return;
	search->has_oldest = 1;
	search->oldest_age = age;
	search->oldest_attempt = attempt;
	search->oldest_port = search->key.destination_port;
}

/* Tries a port, and moves on to the next one. Returns 1 to stop. */
static long try_port(__u32 attempt, struct search *search)
{
	struct flow *held;

	if (search->source_count)
		next_source(search, attempt);
	held = find_settled(&search->key, search->family);
	if (held && is_same_way(held, &search->back)) {
		forget_settled(&search->key, search->family);
		held = NULL;
	}
	if (!held) {
		search->is_found = !insert_opening(&search->key, &search->back, search->family, BPF_NOEXIST);
		if (search->is_found)
			return 1;
		held = find_opening(&search->key, search->family);
		search->is_found = held && is_same_way(held, &search->back) &&
				   !insert_opening(&search->key, &search->back, search->family, BPF_ANY);
		if (search->is_found)
			return 1;
		if (held)
			note_age(search, held, attempt);
	}
	if (!search->source_count) {
		__u32 port = bpf_ntohs(search->key.destination_port);

		port = 1024 + (port * 40503 + 12345 + attempt) % 64512;
		search->key.destination_port = bpf_htons(port);
	}
	return 0;
}

/* Takes the port of the flow that has been opening for longest, or of the direct flow that has been silent
 * for longest: if a flood occupies all ports, clients that answer get through, and what is removed most
 * likely belongs to the flood. */
static __noinline int take_oldest(struct search *search)
{
	struct flow_key6 there = {};
	struct flow *held;
	__u32 backend;
	__u8 seen;

	if (search->source_count)
		next_source(search, search->oldest_attempt);
	else
		search->key.destination_port = search->oldest_port;
	held = find_opening(&search->key, search->family);
	if (held && held->direction == TO_CLIENT) {
		backend = held->backend;
		seen = held->seen;
		other_key(&there, held, search->key.protocol);
		held = find_opening(&there, search->family);
		/* Its other direction, unless that belongs to another flow by now; see `is_over`. */
		if (held && held->source_port == search->key.destination_port &&
		    same_address(&held->source, &search->key.destination)) {
			seen = (held->seen & seen & SEEN_FIN) | ((held->seen | seen) & SEEN_RST);
			forget_opening(&there, search->family);
			if (!seen)
				count_open(backend, -1);
		}
	}
	search->is_found = !insert_opening(&search->key, &search->back, search->family, BPF_ANY);
	return 0;
}

/* Makes the search use the sources of the packet's listener. Returns 0 if it has none. */
__noinline int by_sources(struct search *search, const struct packet *packet)
{
	struct endpoint at = {};
	struct listener *listener;

	if (!search || !packet)
		return 0;
	place_of(&at, &packet->destination, packet->destination_port, packet->protocol);
	listener = bpf_map_lookup_elem(&listeners, &at);
	if (!listener || !listener->source_count || !listener->ports)
		return 0;
	search->sources = (listener->number * 2 + (packet->family == 6)) * MAX_SOURCES;
	search->source_count = listener->source_count;
	search->first_port = listener->first_port;
	search->ports = listener->ports;
	search->hash = mix64(hash_of(packet, HASH_FLOW)) >> 1;
	return 1;
}

/* Stores both directions of a flow among those that are opening. `flow` is the one to the backend; its
 * source is changed if full-NAT requires that, or if a flow of the same client through another listener
 * has its port. Returns 0, or a drop verdict. */
__noinline int remember(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct search search = {};

	if (!packet || !flow)
		return DROP_NO_PORT;
	search.back.source = packet->destination;
	search.back.source_port = packet->destination_port;
	search.back.destination = packet->source;
	search.back.destination_port = packet->source_port;
	search.back.backend = flow->backend;
	search.back.generation = flow->generation;
	search.back.listener = flow->listener;
	search.back.last_tick = flow->last_tick;
	search.back.direction = TO_CLIENT;
	search.back.forward = flow->forward;
	search.back.opened = flow->opened;
	search.back.next_hop.interface = skb->ifindex;
	search.family = packet->family;
	other_key(&search.key, flow, packet->protocol);
	if (flow->forward == FORWARD_FULL_NAT && !by_sources(&search, packet))
		return DROP_NO_PORT;
	bpf_loop(flow->forward == FORWARD_FULL_NAT ? SOURCE_TRIES : PORT_TRIES, try_port, &search, 0);
	if (!search.is_found && search.has_oldest)
		take_oldest(&search);
	if (!search.is_found)
		return DROP_NO_PORT;
	if (search.key.destination_port != packet->source_port)
		note(TRACE_PORT, bpf_ntohs(search.key.destination_port));
	flow->source = search.key.destination;
	flow->source_port = search.key.destination_port;
	key_of(&search.key, packet);
	/* From the stack: Linux 6.1 does not store values that an argument points to. */
	search.back = *flow;
	if (insert_opening(&search.key, &search.back, packet->family, BPF_ANY))
		return DROP_SHED;
	count_open(flow->backend, 1);
	return 0;
}

/* Stores a flow whose answers bypass this host. Returns 0, or a drop verdict. */
__noinline int remember_one_way(const struct packet *packet, struct flow *flow)
{
	struct flow_key6 key = {};
	struct flow stored;

	if (!packet || !flow)
		return DROP_SHED;
	key_of(&key, packet);
	/* From the stack: Linux 6.1 does not store values that an argument points to. */
	stored = *flow;
	if (insert_opening(&key, &stored, packet->family, BPF_ANY))
		return DROP_SHED;
	count_open(flow->backend, 1);
	return 0;
}

#endif
