/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Flows that are opening: kept apart until their client has shown that it receives the backend's packets,
 * which a sender that forges other hosts' addresses can't. */
#ifndef WEIR_OPENING_H
#define WEIR_OPENING_H

#include "flows.h"

/* A client's acknowledgement may differ by up to half this number of bytes from what the backend sent
 * last: a random guess is right once in 4096 times. */
#define ACKNOWLEDGED_WITHIN (1 << 20)

/* How far the acknowledgement of a reset may be from the first segment that it answers, as that may carry
 * data (RFC 7413). */
#define FIRST_SEGMENT (1 << 16)

/* Counts a connection that the backend refused or did not answer. At most one per client, so that a single
 * client can't make a backend look bad: some segments get no answer from any host. */
__noinline int count_failure(const struct packet *packet, const struct flow *flow, int is_refused)
{
	struct failed_client who = {};
	struct backend_counter *counter;
	struct backend *backend;
	__u32 now, *last;

	if (!packet || !flow)
		return 0;
	who.backend = flow->backend;
	counter = bpf_map_lookup_elem(&backend_counters, &who.backend);
	backend = bpf_map_lookup_elem(&backends, &who.backend);
	if (!counter || !backend || !backend->failure_ticks)
		return 0;
	who.client = flow->direction == TO_BACKEND ? packet->source : flow->destination;
	if (packet->family == 6) {
		who.client.words[2] = 0;
		who.client.words[3] = 0;
	}
	now = packet->now;
	last = bpf_map_lookup_elem(&failed_clients, &who);
	if (last && now - *last < backend->failure_ticks) {
		counter->failed_again++;
		return 0;
	}
	bpf_map_update_elem(&failed_clients, &who, &now, BPF_ANY);
	if (is_refused)
		counter->refused++;
	else
		counter->unanswered++;
	return 0;
}

static __always_inline void count_served(__u32 backend)
{
	struct backend_counter *counter = bpf_map_lookup_elem(&backend_counters, &backend);

	if (counter)
		counter->served++;
}

/* Stores the sequence number of a connection's first segment in the flow that it opens: a refusal
 * acknowledges it. */
__noinline int note_first(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	__be32 number;

	if (!packet || !flow || !opens(packet) ||
	    bpf_skb_load_bytes(skb, packet->transport + offsetof(struct tcphdr, seq), &number, sizeof(number)))
		return 0;
	flow->sequence = bpf_ntohl(number);
	return 0;
}

/* Moves one direction to the settled flows. */
__noinline int move_settled(const struct flow_key6 *from, __u8 family)
{
	struct flow_key4 key4 = {};
	struct flow_key6 key;
	struct flow *flow;
	long refused;
	__u8 opened;

	if (!from)
		return 0;
	/* On the stack: Linux 6.1 does not look up keys that an argument points to. */
	key = *from;
	narrow(&key4, &key);
	flow = find_opening(&key, family);
	if (!flow)
		return 0;
	/* A look-up that finds it here before it is removed finds it settled. */
	opened = flow->opened;
	flow->opened = 0;
	if (family == 6)
		refused = bpf_map_update_elem(&flows6, &key, flow, BPF_ANY);
	else
		refused = bpf_map_update_elem(&flows4, &key4, flow, BPF_ANY);
	if (refused) {
		flow->opened = opened;
		return 0;
	}
	forget_opening(&key, family);
	return 1;
}

/* Moves a flow to the settled ones, with its other direction if there is one. Returns 1 if it is stored
 * elsewhere from now on. */
__noinline int settle(const struct packet *packet, const struct flow *flow, const struct flow *other)
{
	struct flow_key6 key = {};
	__u32 backend;
	int moved;

	if (!packet || !flow)
		return 0;
	backend = flow->backend;
	if (other) {
		other_key(&key, flow, packet->protocol);
		/* The way back goes first: a flow whose direction to the backend is settled is not looked
		 * at again. */
		if (other->opened && !move_settled(&key, packet->family))
			return 0;
	}
	key_of(&key, packet);
	moved = move_settled(&key, packet->family);
	if (moved && packet->protocol == IPPROTO_TCP)
		count_served(backend);
	return moved;
}

/* Records a backend's answer in the flow whose other direction is found with `key`. */
static __always_inline void note_answer(struct flow *flow, const struct packet *packet, const struct flow_key6 *key,
					__u32 sequence, __u32 acknowledged)
{
	const struct flow *other;

	flow->sequence = sequence;
	if (packet->protocol != IPPROTO_TCP)
		flow->seen |= SEEN_DATA;
	if (packet->protocol != IPPROTO_TCP || (packet->tcp_flags & (TCP_RST | TCP_ACK)) != (TCP_RST | TCP_ACK) || flow->seen)
		return;
	/* A reset in answer to anything but a first segment is not a refusal: senders of such segments are
	 * not believed. The reset of a first segment acknowledges it, and that of one with ACK
	 * acknowledges nothing (RFC 9293 §3.5.2). */
	other = find(key, packet->family);
	if (other && !(other->seen & ~(SEEN_SYN | SEEN_AGAIN)) && acknowledged - other->sequence - 1 < FIRST_SEGMENT)
		count_failure(packet, flow, true);
}

/* Whether the client has got the backend's answer; for datagrams, whether it sends another one after an
 * answer. */
static __always_inline bool has_heard(const struct packet *packet, const struct flow *flow, const struct flow *other,
				      __u32 acknowledgement)
{
	__u32 ahead = acknowledgement - other->sequence + ACKNOWLEDGED_WITHIN / 2;

	if (packet->protocol != IPPROTO_TCP)
		return other->seen;
	return packet->tcp_flags & TCP_ACK && !(packet->tcp_flags & (TCP_SYN | TCP_RST)) &&
	       other->seen & (SEEN_SYN | SEEN_DATA) && !((flow->seen | other->seen) & SEEN_RST) &&
	       ahead < ACKNOWLEDGED_WITHIN;
}

/* Handles a packet of a flow that is opening. Returns 1 if the flow has settled, and `flow` is stored
 * elsewhere. */
__noinline int go_on_opening(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct flow_key6 key = {};
	__be32 numbers[2] = {};
	struct flow *other;

	if (!packet || !flow)
		return 0;
	if (packet->protocol == IPPROTO_TCP && bpf_skb_load_bytes(skb, packet->transport + offsetof(struct tcphdr, seq),
								   numbers, sizeof(numbers)))
		return 0;
	if (is_one_way(flow)) {
		/* The backend's answers do not pass here: a client that continues is believed. */
		bool goes_on = packet->protocol != IPPROTO_TCP ||
			       (packet->tcp_flags & TCP_ACK && !(packet->tcp_flags & (TCP_SYN | TCP_RST)));

		follow(flow, packet);
		return goes_on && settle(packet, flow, NULL);
	}
	other_key(&key, flow, packet->protocol);
	if (flow->direction == TO_CLIENT) {
		note_answer(flow, packet, &key, bpf_ntohl(numbers[0]), bpf_ntohl(numbers[1]));
		follow(flow, packet);
		return 0;
	}
	other = find(&key, packet->family);
	if (opens(packet) && flow->sequence != bpf_ntohl(numbers[0])) {
		/* The client has given up the previous connection. */
		flow->sequence = bpf_ntohl(numbers[0]);
	} else if (opens(packet) && flow->last_tick != packet->now && other && !other->seen && !(flow->seen & SEEN_AGAIN)) {
		flow->seen |= SEEN_AGAIN;
		count_failure(packet, flow, false);
	}
	follow(flow, packet);
	if (!other || other->direction != TO_CLIENT || !has_heard(packet, flow, other, bpf_ntohl(numbers[1])))
		return 0;
	return settle(packet, flow, other);
}

#endif
