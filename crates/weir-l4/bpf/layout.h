/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the program and weir-l4/src/layout.rs must agree on: the values in maps, and constants. No struct
 * has unnamed padding, and each size is asserted in both languages. */
#ifndef WEIR_LAYOUT_H
#define WEIR_LAYOUT_H

#include <linux/types.h>

/* Incremented whenever a layout changes; the loader refuses to take over pinned maps with another one. */
#define LAYOUT_VERSION 8

/* Slots of a pool's table, as weir_balance::maglev::TABLE_SIZE. */
#define TABLE_SIZE 65537
/* Slots are in blocks: the kernel rounds each element of an array up to 8 bytes. */
#define SLOTS_PER_BLOCK 32
#define BLOCKS_PER_TABLE 2049

/* An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d, in network byte order. */
struct address {
	__be32 words[4];
};

/* An address and port that clients send to, or that a backend answers from. Port 0 stands for the address
 * as a whole: later fragments have no port. */
struct endpoint {
	struct address address;
	__be16 port;
	__u8 protocol;
	/* `address` is not an address, but stands for all backends without a port of their own that the
	 * same listeners use. */
	__u8 is_group;
};
_Static_assert(sizeof(struct endpoint) == 20, "keep Endpoint in weir-l4/src/layout.rs equal");

/* How packets are forwarded. */
enum forward {
	/* The destination becomes that of the backend. */
	FORWARD_NAT = 0,
	/* The source also becomes one of the listener's sources. */
	FORWARD_FULL_NAT = 1,
	/* Only the MAC addresses change: the backend has the listener's address, and its answers bypass
	 * us. */
	FORWARD_DSR = 2,
	/* As DSR, but inside an outer header to the backend, which may be behind routers. */
	FORWARD_IPIP = 3,
};

/* Most sources of a listener for each address family. */
#define MAX_SOURCES 16

/* A listener's endpoint: its pool, where its packets are counted, and how they are forwarded. */
struct listener {
	__u32 number;
	__u32 pool;
	/* Ports of its sources: the first, and their number. */
	__u16 first_port;
	__u16 ports;
	/* Number of its addresses of this family in `sources`. */
	__u8 source_count;
	__u8 forward;
	/* This host's sockets may have connections to it: those that the proxy plane had before the kernel
	 * plane took over. */
	__u8 asks_host;
	/* It takes new flows only through its own interfaces: those in `listener_interfaces`. */
	__u8 is_confined;
};
_Static_assert(sizeof(struct listener) == 16, "keep Listener in weir-l4/src/layout.rs equal");

/* An interface through which a listener takes new flows. */
struct listener_interface {
	__u32 listener;
	__u32 interface;
};
_Static_assert(sizeof(struct listener_interface) == 8, "keep the key of `listener_interfaces` without padding");

/* Clients that a listener admits or refuses, by longest prefix. A prefix of only the number (32 bits)
 * stands for all other clients, if there is a list of admitted ones. */
struct network {
	/* Number of significant bits in what follows. */
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
	/* By the hash of the key: the slot has the backend. */
	ALGORITHM_HASH = 0,
	/* In turn, through the slots. */
	ALGORITHM_TURNS = 1,
	/* The backend with the fewest flows for its weight among the first `slots` slots. */
	ALGORITHM_LEAST_FLOWS = 2,
};

enum hash_key {
	/* Only the client's address: weir_balance::address_hash. */
	HASH_CLIENT = 0,
	/* Both addresses, both ports, protocol: weir_balance::flow_hash. */
	HASH_FLOW = 1,
};

/* How a pool chooses. User space fills the table that is not in force, and then writes this atomically. */
struct pool {
	__u32 algorithm;
	__u32 hash_key;
	/* Which of the pool's two tables is in force: 0 or 1. */
	__u32 table;
	/* Number of slots that have a backend; 0 when no backend takes new flows. */
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
	/* Its flows continue; the table determines whether it gets new ones. */
	BACKEND_ALIVE = 1,
	/* Down or removed: UDP flows move, TCP flows are reset. */
	BACKEND_DEAD = 2,
};

struct backend {
	struct address address;
	/* 0 keeps the port that the client asked for. */
	__be16 port;
	__u8 state;
	/* 4 or 6. */
	__u8 family;
	/* Incremented when the number is given to another backend; flows store the value. */
	__u32 generation;
	/* In hundredths, above 0; the divisor of least-flows. */
	__u32 weight;
	/* The interface that leads to it, for hosts that do not forward; 0 if not known. */
	__u32 interface;
	/* This host's address for outer headers to it, if its listener has none; zero if not known. */
	struct address source;
	/* The period, in ticks, in which failed connections of one client count as one; 0 if failures are
	 * not evaluated. */
	__u32 failure_ticks;
};
_Static_assert(sizeof(struct backend) == 52, "keep Backend in weir-l4/src/layout.rs equal");

/* How listeners use a backend: bits. */
enum use {
	/* By NAT: all its answers pass through here. */
	USE_NAT = 1,
	/* By full-NAT: it answers to a source of ours. */
	USE_FULL_NAT = 2,
	/* At whatever port the client asked for. */
	USE_ANY_PORT = 4,
};

/* The way back from a backend without a flow: the only listener that may have used it by NAT. */
struct origin {
	/* The listener's; at port 0 with USE_ANY_PORT that of the group, which has an origin for each
	 * port. */
	struct address address;
	__be16 port;
	/* Several listeners use this backend by NAT, so the listener of an answer is not known. */
	__u8 is_ambiguous;
	/* Bits of `enum use`. */
	__u8 uses;
	__u32 listener;
	__u32 backend;
};
_Static_assert(sizeof(struct origin) == 28, "keep Origin in weir-l4/src/layout.rs equal");

/* Ports of an address from which full-NAT sends: the first and the last. */
struct source {
	__u16 first_port;
	__u16 last_port;
	/* The listener under which answers without a flow are counted. */
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
	/* Answers to a client that uses a backend by its own address: not ours. */
	DIRECT = 2,
};

/* What TCP segments were seen in one direction of a flow. */
enum seen {
	SEEN_SYN = 1,
	SEEN_FIN = 2,
	/* Recorded in both directions. */
	SEEN_RST = 4,
	/* A segment without SYN: the other side has answered. */
	SEEN_DATA = 8,
	/* Another SYN, a second or more after the first. */
	SEEN_AGAIN = 16,
	/* A segment without SYN and RST, after a reset. */
	SEEN_AFTER = 32,
};

/* Where a flow last left this host. */
struct next_hop {
	__u32 interface;
	__u8 destination_mac[6];
	__u8 source_mac[6];
	/* The MTU for IP packets, in bytes. */
	__u16 mtu;
	/* The other end of the interface is in another network namespace of this host. */
	__u8 is_peer;
	__u8 zero;
	/* When it was looked up, in ticks of the clock; 0 is never. */
	__u32 resolved_tick;
	/* The value in `struct settings` at that time. */
	__u32 routes;
};
_Static_assert(sizeof(struct next_hop) == 28, "keep NextHop in weir-l4/src/layout.rs equal");

/* One direction of a flow: how its packets are rewritten. Each flow has two, each found by the packets
 * that it is for. */
struct flow {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u32 backend;
	__u32 generation;
	__u32 listener;
	/* Time of the last packet, in ticks of the clock: 2^30 ns of CLOCK_MONOTONIC each. */
	__u32 last_tick;
	__u8 direction;
	__u8 seen;
	/* When it was opened, in units of 2^27 ns, from 1 to 255 with wrap-around, while it is in the
	 * table of opening flows; otherwise 0. */
	__u8 opened;
	/* `enum forward`, from its listener. */
	__u8 forward;
	struct next_hop next_hop;
	/* For a flow that is opening: the sequence number of the backend's latest segment, or of the
	 * client's first one. With DSR and IP-in-IP, for a connection that its client has ended: when it
	 * did, in ticks. */
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

/* Capacity for routes. */
#define MAX_WAYS 4096

/* Networks that this host's routes lead to, by longest prefix; for an IPv4 address, its first 96 bits
 * count as well. */
struct routed {
	__u32 prefix;
	struct address address;
};
_Static_assert(sizeof(struct routed) == 20, "keep the key of `ways` without padding");

/* Where a route leads. */
struct way_out {
	__u32 interface;
	/* Through a router, or directly to the link. */
	__u32 is_behind_router;
};
_Static_assert(sizeof(struct way_out) == 8, "keep WayOut in weir-l4/src/host.rs equal");

/* How the first fragment of a packet was forwarded; later ones follow it. */
struct fragment {
	struct flow_key6 flow;
	__u32 seen_tick;
};
_Static_assert(sizeof(struct fragment) == 44, "keep Fragment in weir-l4/src/layout.rs equal");

/* Settings that user space changes while the program runs. */
struct settings {
	/* Incremented when a route, a neighbour or a device of this host changes. */
	__u32 routes;
	/* There are backends without a port of their own. */
	__u32 has_groups;
};
_Static_assert(sizeof(struct settings) == 8, "keep Settings in weir-l4/src/layout.rs equal");

/* What happened to a packet that came for a listener or from a backend. Each is counted under exactly one
 * verdict. */
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
	/* Left to this host, which has a socket for its connection. */
	VERDICT_TO_HOST,
	/* From an address of this host, which no other host may use. */
	DROP_OWN_ADDRESS,
	/* It has both SYN and FIN. */
	DROP_BAD_FLAGS,
	VERDICTS,
};
_Static_assert(VERDICTS == 23, "keep Verdict in weir-l4/src/layout.rs equal");

/* The steps of a packet that the program for explanations records, each with a number. */
enum trace_step {
	/* The packet belongs to a flow to this backend. */
	TRACE_FLOW = 1,
	/* It is an answer of this backend. */
	TRACE_ANSWERS = 2,
	/* It is an answer to a client that uses a backend past the listeners. */
	TRACE_DIRECT = 3,
	/* This backend, of the flow, no longer accepts packets. */
	TRACE_BACKEND_GONE = 4,
	/* The flow is over, and the client's port begins another. */
	TRACE_BEGINS_ANEW = 5,
	/* No flow: it came for this listener. */
	TRACE_LISTENER = 6,
	/* No flow: it came from a backend of this listener. */
	TRACE_ORIGIN = 7,
	/* Chosen by the hash of this pool, and the slot. */
	TRACE_POOL = 8,
	TRACE_SLOT_BY_HASH = 9,
	/* Or by turn. */
	TRACE_SLOT_BY_TURN = 10,
	/* Or because this number of flows, including the new one, is the lowest for the weight. */
	TRACE_FEWEST_FLOWS = 11,
	/* This backend was met and is down. */
	TRACE_PASSED_OVER = 12,
	/* This one was chosen. */
	TRACE_BACKEND = 13,
	/* There is no room to store the flow. */
	TRACE_NOT_REMEMBERED = 14,
	/* The client's port is in use at the backend, which sees this one instead. */
	TRACE_PORT = 15,
	/* The interface that it leaves through, how its neighbour was found (`enum way`), and the MTU
	 * there. */
	TRACE_INTERFACE = 16,
	TRACE_WAY = 17,
	TRACE_MTU = 18,
	/* The result: a verdict. */
	TRACE_VERDICT = 19,
	/* A socket of this host has its connection, in this TCP state (`enum` of linux/tcp_states.h). */
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

/* Counted per CPU. */
struct counter {
	__u64 packets;
	__u64 bytes;
};
_Static_assert(sizeof(struct counter) == 16, "keep Counter in weir-l4/src/layout.rs equal");

struct backend_counter {
	__u64 flows;
	__u64 bytes_to_backend;
	__u64 bytes_to_client;
	/* Connections that it reset before it had answered. */
	__u64 refused;
	/* Connections whose client asked again, a second later, because it had not answered. */
	__u64 unanswered;
	/* Failed connections of clients for which one was already counted within `failure_ticks`. */
	__u64 failed_again;
	/* Connections whose client has got an answer from it. */
	__u64 served;
};
_Static_assert(sizeof(struct backend_counter) == 56, "keep BackendCounter in weir-l4/src/layout.rs equal");

/* A client whose connection to a backend failed. */
struct failed_client {
	/* For IPv6 the network of 64 bits: a client with such a network has all of its addresses. */
	struct address client;
	__u32 backend;
};
_Static_assert(sizeof(struct failed_client) == 20, "keep the key of `failed_clients` without padding");

#endif
