/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What belongs to this host: its addresses, and the connections of its sockets, which the proxy plane
 * accepted before a listener moved to this plane. */
#ifndef WEIR_HOST_H
#define WEIR_HOST_H

#include "flows.h"
#include "packet.h"
#include "trace.h"

/* TCP states from linux/tcp_states.h, which BPF programs can't include. */
#define SOCKET_TIME_WAIT 6
#define SOCKET_CLOSE 7
#define SOCKET_LISTEN 10

static __always_inline bool is_host(const struct address *address)
{
	/* On the stack: Linux 6.1 does not look up keys that an argument points to. */
	struct address key = *address;

	return bpf_map_lookup_elem(&host_addresses, &key) != NULL;
}

/* Whether the source of a packet is an address of this host, or one from which full-NAT sends. The host's
 * own packets do not arrive here. */
__noinline int is_from_own(const struct packet *packet)
{
	struct address key;

	if (!packet)
		return 0;
	/* On the stack: Linux 6.1 does not look up keys that an argument points to. */
	key = packet->source;
	return bpf_map_lookup_elem(&host_addresses, &key) || bpf_map_lookup_elem(&source_ports, &key);
}

/* Whether a socket of this host has the connection of `key`, as seen from the client. A segment that opens
 * one (`opens`) belongs to a socket whose handshake has begun, and not to one that only waits for late
 * segments. */
__noinline int is_of_host(struct __sk_buff *skb, const struct flow_key6 *key, __u8 family, bool opens)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 state;

	if (!key || key->protocol != IPPROTO_TCP)
		return 0;
	if (family == 6) {
		__builtin_memcpy(tuple.ipv6.saddr, &key->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &key->destination, 16);
		tuple.ipv6.sport = key->source_port;
		tuple.ipv6.dport = key->destination_port;
		socket = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv4.saddr = key->source.words[3];
		tuple.ipv4.daddr = key->destination.words[3];
		tuple.ipv4.sport = key->source_port;
		tuple.ipv4.dport = key->destination_port;
		socket = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return 0;
	state = socket->state;
	bpf_sk_release(socket);
	/* A listening socket would match any client. */
	if (state == SOCKET_LISTEN || state == SOCKET_CLOSE || (opens && state == SOCKET_TIME_WAIT))
		return 0;
	note(TRACE_HOST_SOCKET, state);
	return 1;
}

/* A first fragment or a whole packet to a listener: see `is_of_host`. */
__noinline int goes_to_host(struct __sk_buff *skb, const struct packet *packet)
{
	struct flow_key6 key = {};

	if (!packet)
		return 0;
	key_of(&key, packet);
	return is_of_host(skb, &key, packet->family, opens(packet));
}

/* A later fragment whose packet belongs to no flow, though the first one came. */
__noinline int meet_later(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct fragment_key at_id = {};
	struct flow_key6 key = {};
	struct fragment *first;
	struct listener *listener;
	struct endpoint at;

	if (!packet || !flow)
		return DROP_FRAGMENT;
	fragment_key_of(&at_id, packet);
	first = bpf_map_lookup_elem(&fragments, &at_id);
	if (!first)
		return DROP_FRAGMENT;
	key = first->flow;
	place_of(&at, &key.destination, key.destination_port, key.protocol);
	listener = bpf_map_lookup_elem(&listeners, &at);
	if (!listener)
		return DROP_FRAGMENT;
	flow->listener = listener->number;
	return listener->asks_host && is_of_host(skb, &key, packet->family, false) ? VERDICT_TO_HOST : DROP_FRAGMENT;
}

#endif
