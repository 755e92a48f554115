/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Balances TCP and UDP packets at the ingress of an interface: packets from clients to a listener become
 * packets to a backend, and its answers become answers of the listener. All other packets pass unchanged.
 *
 * Functions that are neither static nor inlined are verified by the kernel once, on their own, for any
 * arguments, and not again at each call and for each state that leads there. That is why they all check
 * for NULL.
 *
 * Start reading at `balance`, at the end. */
#include "admission.h"
#include "answer.h"
#include "choose.h"
#include "flows.h"
#include "forward.h"
#include "host.h"
#include "icmp.h"
#include "maps.h"
#include "opening.h"
#include "origins.h"
#include "packet.h"
#include "rewrite.h"
#include "trace.h"
#include "tunnel.h"
#include "verdict.h"

char license_of_the_program[] SEC("license") = "GPL";

static __always_inline void count_bytes(struct __sk_buff *skb, const struct flow *flow)
{
	__u32 number = flow->backend;
	struct backend_counter *counter = bpf_map_lookup_elem(&backend_counters, &number);
	__u64 bytes = skb->wire_len ? skb->wire_len : skb->len;

	if (!counter || EXPLAINS)
		return;
	if (flow->direction == TO_BACKEND)
		counter->bytes_to_backend += bytes;
	else
		counter->bytes_to_client += bytes;
}

/* Remembers what the first fragment of a packet belongs to. */
__noinline int note_fragment(const struct packet *packet)
{
	struct fragment_key key = {};
	struct fragment fragment = {};

	if (!packet || EXPLAINS)
		return 0;
	fragment_key_of(&key, packet);
	key_of(&fragment.flow, packet);
	fragment.seen_tick = packet->now;
	bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
	return 0;
}

/* What to do with a packet: NOT_OURS, a verdict to drop it by, or one of these. */
enum step {
	/* It belongs to the flow that was found. */
	STEP_FOUND = 0x100,
	/* It belongs to the flow that was made for it. */
	STEP_MADE = 0x101,
	/* It is answered with a reset. */
	STEP_RESET = 0x102,
	/* It is for a backend's own address, past all listeners. */
	STEP_DIRECT = 0x103,
	/* It belongs to the flow that was found, which is still opening. */
	STEP_OPENING = 0x104,
	/* It belongs to the flow that was made for it, which is yet to be stored. */
	STEP_NEW = 0x105,
	/* It was sent and counted. */
	STEP_SENT = 0x106,
	/* It is an error about a packet inside another. */
	STEP_TUNNEL = 0x107,
};

/* Sends a packet on, changing only its hop limit, inside an outer header if its flow requires that. */
__noinline int pass_on(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow, enum way way,
		       int *action)
{
	/* When the kernel cuts a train that gets a header, it counts the segments again. */
	__u32 segments = skb->gso_segs;

	if (!packet || !flow || !action || hand_over(skb, packet, flow))
		return DROP_NOT_REWRITTEN;
	count_bytes(skb, flow);
	*action = send(skb, flow, way);
	if (flow->forward == FORWARD_DSR)
		return VERDICT_TO_BACKEND;
	count_segments(skb, flow->listener, VERDICT_TO_BACKEND, segments);
	return STEP_SENT;
}

/* Forwards a packet of a flow and returns an action; or returns the verdict of the error that answers it,
 * if it can't be forwarded. */
__noinline int deliver(struct __sk_buff *skb, struct packet *packet, struct flow *flow, int *action)
{
	enum way way;

	if (!packet || !flow || !action)
		return DROP_NOT_REWRITTEN;
	if (packet->fault)
		return packet->fault;
	if (packet->hop_limit <= 1)
		return VERDICT_TIME_EXCEEDED;
	way = way_of(skb, packet, flow);
	note(TRACE_WAY, way);
	if (way == WAY_NONE)
		return DROP_NO_ROUTE;
	note(TRACE_INTERFACE, flow->next_hop.interface);
	note(TRACE_MTU, flow->next_hop.mtu);
	if (!fits(skb, packet, flow)) {
		/* Made for this packet it is opening; or is nobody's, of which nothing says when it was last seen. */
		packet->is_settled = !flow->opened && flow->last_tick;
		return packet->is_whole ? VERDICT_TOO_BIG : DROP_UNANSWERED;
	}
	if (packet->fragment == FIRST_FRAGMENT)
		note_fragment(packet);
	if (is_one_way(flow))
		return pass_on(skb, packet, flow, way, action);
	if (rewrite(skb, packet, flow))
		return DROP_NOT_REWRITTEN;
	count_bytes(skb, flow);
	*action = send(skb, flow, way);
	return flow->direction == TO_BACKEND ? VERDICT_TO_BACKEND : VERDICT_TO_CLIENT;
}

/* The first packet of a flow, or a later packet of an unknown flow: makes the flow. */
__noinline int admit(struct packet *packet, struct flow *flow, const struct listener *listener)
{
	struct backend *backend;
	struct pool *pool;
	__u32 number;

	if (!packet || !flow || !listener)
		return NOT_OURS;
	if (packet->fault)
		return packet->fault;
	if (packet->protocol == IPPROTO_TCP && (packet->tcp_flags & (TCP_SYN | TCP_FIN)) == (TCP_SYN | TCP_FIN))
		return DROP_BAD_FLAGS;
	if (!is_admitted(packet, flow->listener))
		return DROP_DENIED;
	number = listener->pool;
	pool = bpf_map_lookup_elem(&pools, &number);
	packet->is_hashed = pool && pool->algorithm == ALGORITHM_HASH;
	if (packet->protocol == IPPROTO_TCP && !opens(packet) && !packet->is_hashed)
		return STEP_RESET;
	number = choose(number, packet);
	backend = bpf_map_lookup_elem(&backends, &number);
	if (number == NOBODY || !backend)
		return DROP_NO_BACKEND;
	/* The backend would answer itself, bypassing us, unless it is reached at another address. */
	if (listener->forward != FORWARD_FULL_NAT && same_address(&backend->address, &packet->source))
		return DROP_OWN_BACKEND;
	note(TRACE_BACKEND, number);
	to_backend(flow, packet, backend, number, listener);
	if (listener->forward == FORWARD_IPIP && !take_source(packet, flow, listener))
		return DROP_NO_ROUTE;
	if (packet->protocol != IPPROTO_TCP || !(packet->tcp_flags & TCP_RST))
		return STEP_NEW;
	/* A flow that gets a reset is over: the reset is forwarded, and no flow is opened for it. The port
	 * of ours by which the backend would know the flow is forgotten. */
	return listener->forward == FORWARD_FULL_NAT ? DROP_UNKNOWN_FLOW : STEP_MADE;
}

/* Stores a flow that was made for a packet. */
__noinline int open_flow(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	struct backend_counter *counter;
	__u32 number;
	int refused;

	if (!packet || !flow)
		return NOT_OURS;
	number = flow->backend;
	note_first(skb, packet, flow);
	refused = is_one_way(flow) ? remember_one_way(packet, flow) : remember(skb, packet, flow);
	/* If there is no room, the hash leads the next packet to the same backend; but answers to a source
	 * of ours could not be assigned to a client. */
	if (refused && !(refused == DROP_SHED && packet->is_hashed && flow->forward != FORWARD_FULL_NAT))
		return refused;
	if (refused)
		note(TRACE_NOT_REMEMBERED, 0);
	counter = bpf_map_lookup_elem(&backend_counters, &number);
	if (counter && !EXPLAINS)
		counter->flows++;
	return STEP_MADE;
}

/* Records that a client uses a backend past all listeners, through this host: the answers are not ours. */
__noinline int note_direct(const struct packet *packet)
{
	struct flow back = {}, *held;
	struct flow_key6 key = {};

	if (!packet)
		return 0;
	key.source = packet->destination;
	key.destination = packet->source;
	key.source_port = packet->destination_port;
	key.destination_port = packet->source_port;
	key.protocol = packet->protocol;
	held = find(&key, packet->family);
	if (held && held->direction == DIRECT) {
		held->last_tick = packet->now;
		/* Its port is the last one to be taken for a listener's flow: see `take_oldest`. */
		held->opened = opened_now();
		return 0;
	}
	/* The client used this port for a listener whose answers came from the same address: only a new
	 * connection, after that one is over, is certainly another. */
	if (held && !(opens(packet) && is_over(held, packet->family)))
		return 0;
	forget_settled(&key, packet->family);
	/* Each packet of the client records it again, so it never has to be moved to the settled flows. */
	back.opened = opened_now();
	back.direction = DIRECT;
	back.last_tick = packet->now;
	insert_opening(&key, &back, packet->family, BPF_ANY);
	return 0;
}

/* A backend's answer of an unknown flow becomes its listener's answer, if only one can be meant. */
static __always_inline int from_origin(struct flow *flow, const struct origin *origin, __u32 backend,
				       const struct flow_key6 *key)
{
	flow->listener = origin->listener;
	note(TRACE_ORIGIN, origin->listener);
	if (origin->is_ambiguous)
		return DROP_UNKNOWN_FLOW;
	flow->source = origin->address;
	flow->source_port = origin->port ? origin->port : key->source_port;
	flow->destination = key->destination;
	flow->destination_port = key->destination_port;
	flow->backend = backend;
	flow->direction = TO_CLIENT;
	return STEP_MADE;
}

/* A backend's answer with full-NAT in a forgotten flow: its client is unknown until it sends again. */
static __always_inline struct source *lost_answer(const struct origin *origin, const struct address *to, __be16 to_port)
{
	/* On the stack: Linux 6.1 does not look up keys that an argument points to. */
	struct address address;
	struct source *source;
	__u16 port = bpf_ntohs(to_port);

	if (!(origin->uses & USE_FULL_NAT))
		return NULL;
	address = *to;
	source = bpf_map_lookup_elem(&source_ports, &address);
	return source && port >= source->first_port && port <= source->last_port ? source : NULL;
}

/* A packet of no flow, and for no listener: it goes to a backend's own address, or comes from one, or is
 * not ours. */
__noinline int meet_backend(struct packet *packet, struct flow *flow)
{
	struct flow_key6 key = {};
	struct origin *origin;
	struct source *source;
	struct endpoint at;
	__u32 backend;

	if (!packet || !flow)
		return NOT_OURS;
	place_of(&at, &packet->destination, packet->destination_port, packet->protocol);
	origin = origin_at(&at, &backend);
	if (origin && origin->uses & USE_NAT)
		return is_from_own(packet) ? NOT_OURS : STEP_DIRECT;
	place_of(&at, &packet->source, packet->source_port, packet->protocol);
	origin = origin_at(&at, &backend);
	if (!origin)
		return NOT_OURS;
	source = lost_answer(origin, &packet->destination, packet->destination_port);
	if (source) {
		flow->listener = source->listener;
		return packet->fault ? packet->fault : DROP_UNKNOWN_FLOW;
	}
	if (!(origin->uses & USE_NAT) || is_host(&packet->destination))
		return NOT_OURS;
	key_of(&key, packet);
	return packet->fault ? packet->fault : from_origin(flow, origin, backend, &key);
}

/* A packet of an unknown flow: makes the flow, and returns what to do. */
__noinline int meet(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	struct listener *listener;
	struct endpoint at;

	/* No socket has port 0, and it has a special meaning in the maps. */
	if (!packet || !flow || !packet->source_port || !packet->destination_port || is_martian(packet) ||
	    same_address(&packet->source, &packet->destination))
		return NOT_OURS;
	place_of(&at, &packet->destination, packet->destination_port, packet->protocol);
	listener = bpf_map_lookup_elem(&listeners, &at);
	if (!listener)
		return meet_backend(packet, flow);
	if (is_past(skb, listener))
		return NOT_OURS;
	flow->listener = listener->number;
	/* Its answers would look like those to this host's own connections (probes, the proxy plane). */
	if (is_from_own(packet)) {
		note(TRACE_LISTENER, listener->number);
		return DROP_OWN_ADDRESS;
	}
	if (listener->asks_host && goes_to_host(skb, packet)) {
		if (packet->fragment == FIRST_FRAGMENT)
			note_fragment(packet);
		return VERDICT_TO_HOST;
	}
	note(TRACE_LISTENER, listener->number);
	return admit(packet, flow, listener);
}

static __always_inline void forget_both(const struct flow *flow, const struct packet *packet)
{
	struct flow_key6 key = {};

	if (!is_one_way(flow)) {
		other_key(&key, flow, packet->protocol);
		forget(&key, packet->family);
	}
	key_of(&key, packet);
	forget(&key, packet->family);
}

/* Whether the port that a flow leaves from is still its own. The table may evict either direction alone,
 * and then the port may belong to another client: this client's packets would end up in that one's
 * connection. */
__noinline int has_way_back(const struct packet *packet, const struct flow *flow)
{
	struct flow_key6 key = {};
	struct flow *back;

	if (!packet || !flow)
		return 0;
	other_key(&key, flow, packet->protocol);
	back = find(&key, packet->family);
	return back && back->direction == TO_CLIENT && back->destination_port == packet->source_port &&
	       back->source_port == packet->destination_port && same_address(&back->destination, &packet->source) &&
	       same_address(&back->source, &packet->destination);
}

/* Removes the direction that a packet belongs to. */
__noinline int forget_flow(const struct packet *packet)
{
	struct flow_key6 key = {};

	if (!packet)
		return 0;
	key_of(&key, packet);
	forget(&key, packet->family);
	return 0;
}

/* A packet of a known flow. */
__noinline int go_on(struct packet *packet, struct flow *flow)
{
	bool begins_anew;
	struct backend *backend;
	__u32 number;

	if (!packet || !flow)
		return NOT_OURS;
	note(flow->direction == DIRECT ? TRACE_DIRECT : flow->direction == TO_CLIENT ? TRACE_ANSWERS : TRACE_FLOW,
	     flow->backend);
	if (flow->direction == DIRECT) {
		flow->last_tick = packet->now;
		if (packet->fragment == FIRST_FRAGMENT)
			note_fragment(packet);
		return NOT_OURS;
	}
	number = flow->backend;
	backend = bpf_map_lookup_elem(&backends, &number);
	if (packet->fragment == LATER_FRAGMENT)
		return STEP_FOUND;
	if (flow->forward == FORWARD_FULL_NAT && flow->direction == TO_BACKEND && !has_way_back(packet, flow)) {
		forget_flow(packet);
		count_open(number, -1);
		return STEP_MADE;
	}
	begins_anew = opens(packet);
	if (!backend || backend->state != BACKEND_ALIVE || backend->generation != flow->generation) {
		note(TRACE_BACKEND_GONE, number);
		/* Its backend has gone: a datagram goes to another one, a connection is reset. */
		if (flow->direction == TO_CLIENT)
			return DROP_NO_BACKEND;
		if (!is_over(flow, packet->family))
			count_open(flow->backend, -1);
		forget_both(flow, packet);
		return packet->protocol == IPPROTO_TCP && !begins_anew ? STEP_RESET : STEP_MADE;
	}
	/* The client reuses the port: a connection that is over must not delay the next one (RFC 9293
	 * §3.6.1). */
	if (begins_anew && flow->direction == TO_BACKEND && is_over(flow, packet->family)) {
		note(TRACE_BEGINS_ANEW, number);
		forget_both(flow, packet);
		return STEP_MADE;
	}
	if (flow->opened && !EXPLAINS)
		return STEP_OPENING;
	follow(flow, packet);
	return STEP_FOUND;
}

/* The flow of a later fragment, which has no ports: it is that of its packet's first fragment, which has
 * stored its key. */
__noinline int later_fragment(struct __sk_buff *skb, const struct packet *packet, struct flow_key6 *key, struct flow *flow)
{
	struct fragment_key at_id = {};
	struct fragment *first;
	struct listener *listener;
	struct origin *origin;
	struct endpoint at;

	if (!packet || !key || !flow)
		return NOT_OURS;
	fragment_key_of(&at_id, packet);
	first = bpf_map_lookup_elem(&fragments, &at_id);
	if (first) {
		*key = first->flow;
		return STEP_FOUND;
	}
	place_of(&at, &packet->destination, 0, packet->protocol);
	listener = bpf_map_lookup_elem(&listeners, &at);
	if (listener && is_past(skb, listener))
		return NOT_OURS;
	if (listener) {
		flow->listener = listener->number;
		return DROP_FRAGMENT;
	}
	place_of(&at, &packet->source, 0, packet->protocol);
	origin = bpf_map_lookup_elem(&origins, &at);
	if (!origin || !(origin->uses & USE_NAT) || is_host(&packet->destination))
		return NOT_OURS;
	flow->listener = origin->listener;
	return DROP_FRAGMENT;
}

/* The flow that an ICMP error is about, if none is stored. */
__noinline int recall(struct __sk_buff *skb, const struct packet *packet, const struct quoted *quoted,
		      struct flow *flow)
{
	struct listener *listener;
	struct origin *origin;
	struct source *source;
	struct endpoint at;
	__u32 backend;

	if (!packet || !quoted || !flow)
		return NOT_OURS;
	place_of(&at, &quoted->opposite.destination, quoted->opposite.destination_port, quoted->opposite.protocol);
	listener = bpf_map_lookup_elem(&listeners, &at);
	if (listener && is_past(skb, listener))
		return NOT_OURS;
	if (listener) {
		flow->listener = listener->number;
		if (listener->asks_host && is_of_host(skb, &quoted->opposite, packet->family, false))
			return VERDICT_TO_HOST;
		/* It is no longer known which backend sent it: only the flow contained that. */
		return DROP_ICMP;
	}
	place_of(&at, &quoted->opposite.source, quoted->opposite.source_port, quoted->opposite.protocol);
	origin = origin_at(&at, &backend);
	if (!origin)
		return NOT_OURS;
	source = lost_answer(origin, &quoted->opposite.destination, quoted->opposite.destination_port);
	if (source) {
		flow->listener = source->listener;
		return DROP_ICMP;
	}
	if (!(origin->uses & USE_NAT) || is_host(&packet->destination))
		return NOT_OURS;
	return from_origin(flow, origin, backend, &quoted->opposite) == STEP_MADE ? STEP_MADE : DROP_ICMP;
}

/* ICMP: errors about our packets are translated; nothing else is ours. */
__noinline int icmp(struct __sk_buff *skb, struct packet *packet, struct flow *flow)
{
	struct quoted quoted = {};
	struct flow *found;
	enum way way;
	int action;

	if (!packet || !flow || packet->fragment || !is_error(skb, packet))
		return NOT_OURS;
	quoted.header = packet->transport + ICMP_HEADER;
	if (!read_quoted(skb, packet, &quoted))
		return is_tunnel(&quoted) ? STEP_TUNNEL : NOT_OURS;
	/* An error is sent to the source of the packet that it quotes; any other is a forgery. */
	if (!same_address(&packet->destination, &quoted.opposite.destination))
		return NOT_OURS;
	found = find(&quoted.opposite, packet->family);
	if (found && found->direction == DIRECT)
		return NOT_OURS;
	if (found) {
		*flow = *found;
	} else {
		int step = recall(skb, packet, &quoted, flow);

		if (step == VERDICT_TO_HOST) {
			count(skb, flow->listener, step);
			return NOT_OURS;
		}
		if (step != STEP_MADE)
			return step == NOT_OURS ? NOT_OURS : drop(skb, flow->listener, step);
	}
	if (packet->fault)
		return drop(skb, flow->listener, packet->fault);
	/* No errors are sent about errors (RFC 1122 §3.2.2). */
	if (packet->hop_limit <= 1)
		return drop(skb, flow->listener, DROP_ICMP);
	way = look_up(skb, flow, packet->family, 0);
	if (way == WAY_NONE)
		return drop(skb, flow->listener, DROP_NO_ROUTE);
	if (flow->forward == FORWARD_IPIP && flow->next_hop.mtu && packet->size > flow->next_hop.mtu)
		return drop(skb, flow->listener, DROP_ICMP);
	/* Errors from the client's side about an answer that bypassed us go to the backend unchanged. */
	if (is_one_way(flow) ? hand_over(skb, packet, flow) : rewrite_icmp(skb, packet, &quoted, flow))
		return drop(skb, flow->listener, DROP_NOT_REWRITTEN);
	action = send(skb, flow, way);
	count(skb, flow->listener, flow->direction == TO_BACKEND ? VERDICT_ICMP_TO_BACKEND : VERDICT_ICMP_TO_CLIENT);
	return action;
}

/* A separate function, since it would need too much stack if it were inlined. */
__noinline int copy_flow(struct flow *to, const struct flow *from)
{
	if (to && from)
		*to = *from;
	return 0;
}

SEC("classifier")
int balance(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct flow_key6 key = {};
	struct flow made = {}, *flow = NULL;
	int step = STEP_FOUND, action = TC_ACT_SHOT;

	/* Frames for other hosts that a switch floods, and VLAN frames, which go to an interface of their
	 * own. */
	if (skb->pkt_type != PACKET_HOST || is_of_vlan(skb) || !parse(skb, &packet))
		return NOT_OURS;
	if ((packet.protocol == IPPROTO_ICMP || packet.protocol == IPPROTO_ICMPV6) && packet.fragment != LATER_FRAGMENT) {
		step = icmp(skb, &packet, &made);
		return step == STEP_TUNNEL ? relay(skb, &packet, &made) : step;
	}
	key_of(&key, &packet);
	if (packet.fragment == LATER_FRAGMENT)
		step = later_fragment(skb, &packet, &key, &made);
	packet.protocol = key.protocol;
	if (step == STEP_FOUND) {
		flow = find(&key, packet.family);
		if (EXPLAINS && flow) {
			/* Changes to a flow are made in a copy. */
			copy_flow(&made, flow);
			flow = &made;
		}
		step = flow ? go_on(&packet, flow) : STEP_MADE;
		if (flow)
			made.listener = flow->listener;
		if (EXPLAINS && step == STEP_MADE)
			made = (struct flow){ .listener = made.listener };
	}
	if (step == STEP_OPENING && flow) {
		if (go_on_opening(skb, &packet, flow))
			flow = find(&key, packet.family);
		step = flow ? STEP_FOUND : STEP_MADE;
	}
	if (step == STEP_MADE) {
		step = packet.fragment == LATER_FRAGMENT ? meet_later(skb, &packet, &made) : meet(skb, &packet, &made);
		if (step == VERDICT_TO_HOST)
			action = NOT_OURS;
	}
	if (step == STEP_NEW)
		step = open_flow(skb, &packet, &made);
	if (step == STEP_FOUND && flow)
		step = deliver(skb, &packet, flow, &action);
	else if (step == STEP_MADE)
		step = deliver(skb, &packet, &made, &action);
	if (step == NOT_OURS)
		return NOT_OURS;
	if (step > STEP_MADE) {
		if (step == STEP_RESET)
			return reset(skb, &packet, made.listener);
		if (step == STEP_SENT)
			return action;
		if (step == STEP_DIRECT && !EXPLAINS)
			note_direct(&packet);
		return NOT_OURS;
	}
	if (step == VERDICT_TIME_EXCEEDED || step == VERDICT_TOO_BIG)
		return answer_error(skb, &packet, made.listener, step);
	count(skb, made.listener, step);
	return action;
}
