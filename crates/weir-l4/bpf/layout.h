/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the program and weir-l4/src/layout.rs must agree on: values of maps, and the numbers in them. Each struct has
 * no padding that is not named, and its size is asserted in both languages. */
#ifndef WEIR_LAYOUT_H
#define WEIR_LAYOUT_H

#include <linux/types.h>

/* Raised whenever a layout changes; the loader refuses to take over pinned maps of another one. */
#define LAYOUT_VERSION 8

/* Slots of a pool's table, as weir_balance::maglev::TABLE_SIZE. */
#define TABLE_SIZE 65537
/* Slots lie in blocks: the kernel rounds each element of an array up to 8 bytes. */
#define SLOTS_PER_BLOCK 32
#define BLOCKS_PER_TABLE 2049

/* An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d, in network byte order. */
struct address {
	__be32 words[4];
};

/* Where packets are taken from clients, or from a backend. Port 0 stands for all of an address: later fragments tell no
 * port. */
struct endpoint {
	struct address address;
	__be16 port;
	__u8 protocol;
	/* `address` is none, but stands for all backends without a port of their own that the same listeners use. */
	__u8 is_group;
};
_Static_assert(sizeof(struct endpoint) == 20, "keep Endpoint in weir-l4/src/layout.rs equal");

/* What is done to packets. */
enum forward {
	/* The destination becomes the backend's. */
	FORWARD_NAT = 0,
	/* The source becomes one of the listener's sources, too. */
	FORWARD_FULL_NAT = 1,
	/* Nothing but the MAC address: the backend has the listener's address, and answers past us. */
	FORWARD_DSR = 2,
	/* As by DSR, within an outer header to the backend: it may be behind routers. */
	FORWARD_IPIP = 3,
};

/* Sources of a listener for each address family, at most. */
#define MAX_SOURCES 16

/* A listener's endpoint: its pool, where its packets are counted, and what is done to them. */
struct listener {
	__u32 number;
	__u32 pool;
	/* Ports of its sources: the first, and how many. */
	__u16 first_port;
	__u16 ports;
	/* Addresses of this family that it has in `sources`. */
	__u8 source_count;
	__u8 forward;
	/* This host's sockets may have connections to it: those that the proxy plane had when this one took it over. */
	__u8 asks_host;
	/* It takes new flows by its own interfaces alone: those in `listener_interfaces`. */
	__u8 is_confined;
};
_Static_assert(sizeof(struct listener) == 16, "keep Listener in weir-l4/src/layout.rs equal");

/* An interface by which a listener takes new flows. */
struct listener_interface {
	__u32 listener;
	__u32 interface;
};
_Static_assert(sizeof(struct listener_interface) == 8, "keep the key of `listener_interfaces` without padding");

/* Clients that a listener lets in or keeps out, by their longest prefix. A prefix of the number alone (32 bits) stands for
 * all others, where there is a list of those that are let in. */
struct network {
	/* Of what follows, in bits. */
	__u32 prefix;
	__u32 listener;
	struct address address;
};
_Static_assert(sizeof(struct network) == 24, "keep Network in weir-l4/src/layout.rs equal");

enum admission {
	ADMITTED = 1,
	DENIED = 2,
};

enum algorithm {
	/* By the hash of the key: the slot holds the backend. */
	ALGORITHM_HASH = 0,
	/* By turns through the slots. */
	ALGORITHM_TURNS = 1,
	/* The fewest flows for its weight among the first `slots` slots. */
	ALGORITHM_LEAST_FLOWS = 2,
};

enum hash_key {
	/* The client's address alone: weir_balance::address_hash. */
	HASH_CLIENT = 0,
	/* Both addresses, both ports, protocol: weir_balance::flow_hash. */
	HASH_FLOW = 1,
};

/* How a pool chooses. User space fills the table that is not in force, and then writes this at once. */
struct pool {
	__u32 algorithm;
	__u32 hash_key;
	/* Which of the pool's two tables is in force: 0 or 1. */
	__u32 table;
	/* Slots of the table that hold a backend; 0 when no backend takes new flows. */
	__u32 slots;
};
_Static_assert(sizeof(struct pool) == 16, "keep Pool in weir-l4/src/layout.rs equal");

/* Numbers of backends. */
struct slot_block {
	__u16 backends[SLOTS_PER_BLOCK];
};
_Static_assert(sizeof(struct slot_block) == 64, "keep SlotBlock in weir-l4/src/layout.rs equal");

enum backend_state {
	/* The number is not in use. */
	BACKEND_NONE = 0,
	/* Its flows go on; whether it gets new ones is what the table says. */
	BACKEND_ALIVE = 1,
	/* Down or removed: flows of UDP move, those of TCP are reset. */
	BACKEND_DEAD = 2,
};

struct backend {
	struct address address;
	/* 0 keeps the one that the client asked for. */
	__be16 port;
	__u8 state;
	/* 4 or 6. */
	__u8 family;
	/* Raised when the number is given to another backend; flows remember theirs. */
	__u32 generation;
	/* In hundredths, above 0; what least-flows divides by. */
	__u32 weight;
	/* The way to it, for hosts that do not forward; 0 when not known. */
	__u32 interface;
	/* Which address of this host outer headers to it come from, if its listener says none; zero when not known. */
	struct address source;
	/* For as long connections of one client that fail count as one, in ticks; 0 where nobody weighs them. */
	__u32 failure_ticks;
};
_Static_assert(sizeof(struct backend) == 52, "keep Backend in weir-l4/src/layout.rs equal");

/* How listeners use a backend: bits. */
enum use {
	/* By NAT: its answers to anybody pass here. */
	USE_NAT = 1,
	/* By full-NAT: it answers a source of ours. */
	USE_FULL_NAT = 2,
	/* At whichever port the client asked for. */
	USE_ANY_PORT = 4,
};

/* The way back from a backend without a flow: the one listener that may have asked it by NAT. */
struct origin {
	/* Of the listener; at port 0 with USE_ANY_PORT that of the group, which has an origin for each port. */
	struct address address;
	__be16 port;
	/* Several listeners use this backend by NAT, so that nobody knows whose answer it is. */
	__u8 is_ambiguous;
	/* Bits of `enum use`. */
	__u8 uses;
	__u32 listener;
	__u32 backend;
};
_Static_assert(sizeof(struct origin) == 28, "keep Origin in weir-l4/src/layout.rs equal");

/* Ports of an address that full-NAT sends from: from the first to the last. */
struct source {
	__u16 first_port;
	__u16 last_port;
	/* Where answers without a flow are counted. */
	__u32 listener;
};
_Static_assert(sizeof(struct source) == 8, "keep Source in weir-l4/src/layout.rs equal");

struct flow_key4 {
	__be32 source;
	__be32 destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 zero[3];
};
_Static_assert(sizeof(struct flow_key4) == 16, "keep FlowKey4 in weir-l4/src/layout.rs equal");

struct flow_key6 {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 zero[3];
};
_Static_assert(sizeof(struct flow_key6) == 40, "keep FlowKey6 in weir-l4/src/layout.rs equal");

enum direction {
	TO_BACKEND = 0,
	TO_CLIENT = 1,
	/* Answers of a backend to somebody who asked it by its own address: not ours. */
	DIRECT = 2,
};

/* What TCP said in one direction of a flow. */
enum seen {
	SEEN_SYN = 1,
	SEEN_FIN = 2,
	/* Both directions are told. */
	SEEN_RST = 4,
	/* Something that is no SYN: the other side has answered. */
	SEEN_DATA = 8,
	/* A SYN again, a second or more after the first. */
	SEEN_AGAIN = 16,
	/* Something that is no SYN and no RST, after one. */
	SEEN_AFTER = 32,
};

/* The way out that a flow last took. */
struct next_hop {
	__u32 interface;
	__u8 destination_mac[6];
	__u8 source_mac[6];
	/* Bytes of IP that fit. */
	__u16 mtu;
	/* The other end of the interface is in another network namespace of this host. */
	__u8 is_peer;
	__u8 zero;
	/* When it was looked up, in ticks of the clock; 0 is never. */
	__u32 resolved_tick;
	/* As in `struct settings` at that time. */
	__u32 routes;
};
_Static_assert(sizeof(struct next_hop) == 28, "keep NextHop in weir-l4/src/layout.rs equal");

/* One direction of a flow: what its packets become. Each flow has two, each found by the packets it is for. */
struct flow {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 backend;
	__u32 generation;
	__u32 listener;
	/* Last packet, in ticks of the clock: 2^30 ns of CLOCK_MONOTONIC each. */
	__u32 last_tick;
	__u8 direction;
	__u8 seen;
	/* When it was opened, in 2^27 ns from 1 to 255 and around, while it lies in the table of flows that are opening; else 0. */
	__u8 opened;
	/* As of its listener: `enum forward`. */
	__u8 forward;
	struct next_hop next_hop;
	/* Of a flow that is opening: the number of the backend's latest segment, or of the client's first one. By DSR and IP-in-IP,
	 * of a connection that its client has ended: when it did, in ticks. */
	__u32 sequence;
};
_Static_assert(sizeof(struct flow) == 88, "keep Flow in weir-l4/src/layout.rs equal");

struct fragment_key {
	struct address source;
	struct address destination;
	__be32 id;
	__u32 protocol;
};
_Static_assert(sizeof(struct fragment_key) == 40, "keep FragmentKey in weir-l4/src/layout.rs equal");

/* Routes that there is room for. */
#define MAX_WAYS 4096

/* Networks that routes of this host lead to, by their longest prefix: of an IPv4 address the first 96 bits as well. */
struct routed {
	__u32 prefix;
	struct address address;
};
_Static_assert(sizeof(struct routed) == 20, "keep the key of `ways` without padding");

/* The way that a route has. */
struct way_out {
	__u32 interface;
	/* By a router, or on the link itself. */
	__u32 is_behind_router;
};
_Static_assert(sizeof(struct way_out) == 8, "keep WayOut in weir-l4/src/host.rs equal");

/* What the first fragment of a packet became; the others follow. */
struct fragment {
	struct flow_key6 flow;
	__u32 seen_tick;
};
_Static_assert(sizeof(struct fragment) == 44, "keep Fragment in weir-l4/src/layout.rs equal");

/* What user space says to the program while it runs. */
struct settings {
	/* Raised when a route, a neighbour or a device of this host changes. */
	__u32 routes;
	/* Some backend has no port of its own. */
	__u32 has_groups;
};
_Static_assert(sizeof(struct settings) == 8, "keep Settings in weir-l4/src/layout.rs equal");

/* What became of a packet that came for a listener or from a backend. Each is counted under exactly one. */
enum verdict {
	VERDICT_TO_BACKEND = 0,
	VERDICT_TO_CLIENT,
	VERDICT_ICMP_TO_BACKEND,
	VERDICT_ICMP_TO_CLIENT,
	VERDICT_RESET,
	VERDICT_TIME_EXCEEDED,
	VERDICT_TOO_BIG,
	DROP_BAD_HEADER,
	DROP_TRUNCATED,
	DROP_NO_BACKEND,
	DROP_UNKNOWN_FLOW,
	DROP_OWN_BACKEND,
	DROP_FRAGMENT,
	DROP_NO_ROUTE,
	DROP_SHED,
	DROP_NO_PORT,
	DROP_ICMP,
	DROP_NOT_REWRITTEN,
	DROP_UNANSWERED,
	DROP_DENIED,
	/* Left to this host, whose socket has its connection. */
	VERDICT_TO_HOST,
	/* From an address of this host, which nobody else may send from. */
	DROP_OWN_ADDRESS,
	/* It opens a connection and ends it. */
	DROP_BAD_FLAGS,
	VERDICTS,
};
_Static_assert(VERDICTS == 23, "keep Verdict in weir-l4/src/layout.rs equal");

/* What the explaining program notes of its way through a packet; the value is the number beside each. */
enum trace_step {
	/* The packet belongs to a flow to this backend. */
	TRACE_FLOW = 1,
	/* It belongs to the answers of this backend. */
	TRACE_ANSWERS = 2,
	/* It belongs to answers to who asked a backend past the listeners. */
	TRACE_DIRECT = 3,
	/* This backend, of the flow, takes no packets any more. */
	TRACE_BACKEND_GONE = 4,
	/* The flow is over, and the client's port begins another. */
	TRACE_BEGINS_ANEW = 5,
	/* No flow: it came for this listener. */
	TRACE_LISTENER = 6,
	/* No flow: it came from a backend of this listener. */
	TRACE_ORIGIN = 7,
	/* Chosen from by this pool's hash, and its slot. */
	TRACE_POOL = 8,
	TRACE_SLOT_BY_HASH = 9,
	/* Or by turn. */
	TRACE_SLOT_BY_TURN = 10,
	/* Or because so many flows, with the new one, are the fewest for the weight. */
	TRACE_FEWEST_FLOWS = 11,
	/* This backend was met and is down. */
	TRACE_PASSED_OVER = 12,
	/* This one takes it. */
	TRACE_BACKEND = 13,
	/* There is no room to remember it. */
	TRACE_NOT_REMEMBERED = 14,
	/* The client's port is taken at the backend, which sees this one. */
	TRACE_PORT = 15,
	/* The interface that it leaves by, how its neighbour is found (`enum way`), and what fits there. */
	TRACE_INTERFACE = 16,
	TRACE_WAY = 17,
	TRACE_MTU = 18,
	/* How it ends: a verdict. */
	TRACE_VERDICT = 19,
	/* A socket of this host has its connection, in this state of TCP (`enum` of linux/tcp_states.h). */
	TRACE_HOST_SOCKET = 20,
};

#define TRACE_STEPS 32

struct trace_entry {
	__u32 step;
	__u32 value;
};
_Static_assert(sizeof(struct trace_entry) == 8, "keep TraceEntry in weir-l4/src/layout.rs equal");

struct trace {
	__u32 count;
	__u32 zero;
	struct trace_entry steps[TRACE_STEPS];
};
_Static_assert(sizeof(struct trace) == 264, "keep Trace in weir-l4/src/layout.rs equal");

/* Counted per processor. */
struct counter {
	__u64 packets;
	__u64 bytes;
};
_Static_assert(sizeof(struct counter) == 16, "keep Counter in weir-l4/src/layout.rs equal");

struct backend_counter {
	__u64 flows;
	__u64 bytes_to_backend;
	__u64 bytes_to_client;
	/* Connections that it refused by a reset before it answered. */
	__u64 refused;
	/* Connections whose client asked again, a second later, because it had not answered. */
	__u64 unanswered;
	/* The same of clients for whom one had been counted within `failure_ticks`. */
	__u64 failed_again;
	/* Connections whose client has heard it. */
	__u64 served;
};
_Static_assert(sizeof(struct backend_counter) == 56, "keep BackendCounter in weir-l4/src/layout.rs equal");

/* A client whose connection to a backend failed. */
struct failed_client {
	/* Of IPv6 the network of 64 bits: who has one has all of its addresses. */
	struct address client;
	__u32 backend;
};
_Static_assert(sizeof(struct failed_client) == 20, "keep the key of `failed_clients` without padding");

#endif
