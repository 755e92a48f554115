/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Maps. Sizes given here are small; the loader sets those that depend on the config. */
#ifndef WEIR_MAPS_H
#define WEIR_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "layout.h"

/* Listeners by the address and port that clients send to. A port range has an entry for each port, so
 * there is room for many; their memory is allocated when they are added. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct endpoint);
	__type(value, struct listener);
} listeners SEC(".maps");

/* Origins, by the address and port that a backend answers from. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct endpoint);
	__type(value, struct origin);
} origins SEC(".maps");

/* The clients that listeners admit and refuse: `enum admission`. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct network);
	__type(value, __u32);
} networks SEC(".maps");

/* The interfaces through which listeners take new flows, for those confined to some. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct listener_interface);
	__type(value, __u32);
} listener_interfaces SEC(".maps");

/* Source addresses of a listener's packets, MAX_SOURCES for IPv4 and then as many for IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64 * 2 * MAX_SOURCES);
	__type(key, __u32);
	__type(value, struct address);
} sources SEC(".maps");

/* The same addresses, of all listeners: what a backend sends there may be the answer of a forgotten flow. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address);
	__type(value, struct source);
} source_ports SEC(".maps");

/* Addresses of this host: what a backend sends there is not an answer to a client. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct address);
	__type(value, __u32);
} host_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct pool);
} pools SEC(".maps");

/* Two tables of BLOCKS_PER_TABLE blocks for each pool. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64 * 2 * BLOCKS_PER_TABLE);
	__type(key, __u32);
	__type(value, struct slot_block);
} slots SEC(".maps");

/* The next turn, by pool. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* Number of open flows, by backend. The sweep corrects it, since evictions from the table are not counted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} open_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key4);
	__type(value, struct flow);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key6);
	__type(value, struct flow);
} flows6 SEC(".maps");

/* Flows with nothing but a first packet, from any address: a flood of those evicts other such flows, and
 * never one that both sides have confirmed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key4);
	__type(value, struct flow);
} opening4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key6);
	__type(value, struct flow);
} opening6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Names of numbers, for a process that takes over the maps: by kind (upper half) and number, a hash of the
 * name. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u64);
} names SEC(".maps");

/* Interfaces whose other end is in another network namespace of this host. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} local_peers SEC(".maps");

/* Routes of this host: if it does not forward, the kernel's route look-up returns nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_WAYS);
	__type(key, struct routed);
	__type(value, struct way_out);
} ways SEC(".maps");

/* Answers of a CPU in a tick, counted separately by kind: segments without a connection are cheap to send,
 * and must not deprive those with a connection of the MTU messages that they need. */
enum answers_to {
	/* Resets, and hop limits that were reached. */
	ANSWERS_TO_ANYBODY = 0,
	/* Packets that are too big, in a flow that is opening, or in none. */
	ANSWERS_TO_LARGE = 1,
	/* Packets that are too big, in a flow whose client has got an answer from the backend. */
	ANSWERS_TO_LARGE_SETTLED = 2,
	/* Errors about outer packets. */
	ANSWERS_TO_TUNNELS = 3,
	ANSWERS_TO,
};

/* Answers of the current tick, by CPU. */
struct answered {
	__u32 tick;
	__u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ANSWERS_TO);
	__type(key, __u32);
	__type(value, struct answered);
} answers SEC(".maps");

/* When a failed connection of a client was last counted. If too many fail for the table, one may be
 * counted again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct failed_client);
	__type(value, __u32);
} failed_clients SEC(".maps");

/* VERDICTS counters for each listener. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1024 * VERDICTS);
	__type(key, __u32);
	__type(value, struct counter);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct backend_counter);
} backend_counters SEC(".maps");

#endif
