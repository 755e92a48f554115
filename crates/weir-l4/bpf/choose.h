/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which backend a new flow gets: the picks of weir-balance, from the tables that user space fills. */
#ifndef WEIR_CHOOSE_H
#define WEIR_CHOOSE_H

#include "maps.h"
#include "packet.h"
#include "trace.h"

#define MULTIPLIER 0x9e3779b97f4a7c15ULL
#define NOBODY 0xffffffff
/* Most slots that are looked at if the first backends found are dead: the table lags behind by
 * milliseconds. */
#define TRIES 16
/* Number of backends that least-flows compares. */
#define MAX_COMPARED 1024

/* weir_balance::stable_hash, piece by piece. */
static __always_inline __u64 mix64(__u64 value)
{
	value += MULTIPLIER;
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
	value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
	return value ^ value >> 31;
}

static __always_inline __u64 fold_hash(__u64 value)
{
	__u64 a = value ^ MULTIPLIER, b = 0xd6e8feb86659fd93ULL;
	__u64 low = (a & 0xffffffff) * (b & 0xffffffff);
	__u64 first = (a >> 32) * (b & 0xffffffff) + (low >> 32);
	__u64 second = (a & 0xffffffff) * (b >> 32) + (first & 0xffffffff);
	__u64 high = (a >> 32) * (b >> 32) + (first >> 32) + (second >> 32);

	return high ^ a * b ^ (value << 23 | value >> 41);
}

/* Eight bytes in memory order, the first one lowest. */
static __always_inline __u64 word(__be32 first, __be32 second)
{
	return (__u64)first | (__u64)second << 32;
}

static __always_inline __u64 hash_of(const struct packet *packet, __u32 key)
{
	const __be32 *from = packet->source.words, *to = packet->destination.words;
	__u64 rest = (__u64)bpf_ntohs(packet->source_port) << 24 |
		     (__u64)bpf_ntohs(packet->destination_port) << 8 | packet->protocol;
	__u64 state;

	if (key == HASH_CLIENT && packet->family == 4)
		return mix64(fold_hash(mix64(4 ^ MULTIPLIER) ^ bpf_ntohl(from[3])));
	if (key == HASH_CLIENT) {
		state = fold_hash(mix64(16 ^ MULTIPLIER) ^ word(from[0], from[1]));
		state = fold_hash(state ^ word(from[2], from[3]));
		return mix64(fold_hash(state));
	}
	if (packet->family == 4) {
		state = fold_hash(mix64(13 ^ MULTIPLIER) ^ word(from[3], to[3]));
	} else {
		state = fold_hash(mix64(37 ^ MULTIPLIER) ^ word(from[0], from[1]));
		state = fold_hash(state ^ word(from[2], from[3]));
		state = fold_hash(state ^ word(to[0], to[1]));
		state = fold_hash(state ^ word(to[2], to[3]));
	}
	return mix64(fold_hash(state ^ rest));
}

/* weir_balance::maglev::slot: the upper 64 of the 128 bits of the mixed key times TABLE_SIZE. */
static __always_inline __u32 slot_of(__u64 key)
{
	__u64 mixed = mix64(key);

	return (mixed >> 48) + ((mixed << 16) + mixed < mixed);
}

static __always_inline __u32 backend_at(__u32 pool, __u32 table, __u32 slot)
{
	__u32 index = (pool * 2 + (table & 1)) * BLOCKS_PER_TABLE + slot / SLOTS_PER_BLOCK;
	struct slot_block *block = bpf_map_lookup_elem(&slots, &index);

	return block ? block->backends[slot % SLOTS_PER_BLOCK] : NOBODY;
}

static __always_inline bool is_alive(__u32 number)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &number);

	return backend && backend->state == BACKEND_ALIVE;
}

struct comparison {
	__u32 pool;
	__u32 table;
	__u32 best;
	__u32 best_weight;
	__u64 best_flows;
};

/* Whether it has fewer flows for its weight; among equals the first wins. */
static long compare(__u32 slot, struct comparison *found)
{
	__u32 number = backend_at(found->pool, found->table, slot);
	struct backend *backend = bpf_map_lookup_elem(&backends, &number);
	__u64 *open = bpf_map_lookup_elem(&open_flows, &number);
	__u64 flows;

	if (!backend || !open || backend->state != BACKEND_ALIVE || backend->weight == 0)
		return 0;
	/* Below zero if flows began and ended around a sweep. */
	flows = (__s64)*open > 0 ? *open + 1 : 1;
	if (found->best == NOBODY || flows * found->best_weight < found->best_flows * backend->weight) {
		found->best = number;
		found->best_weight = backend->weight;
		found->best_flows = flows;
	}
	return 0;
}

/* The number of a backend; NOBODY if none accepts new flows. */
__noinline __u32 choose(__u32 number, const struct packet *packet)
{
	struct pool *pool = bpf_map_lookup_elem(&pools, &number);
	__u64 *turn = bpf_map_lookup_elem(&turns, &number);
	__u32 table, count, slot;

	if (!packet || !pool || !turn)
		return NOBODY;
	note(TRACE_POOL, number);
	table = pool->table;
	count = pool->slots;
	if (count == 0 || count > TABLE_SIZE)
		return NOBODY;
	if (pool->algorithm == ALGORITHM_LEAST_FLOWS) {
		struct comparison found = { .pool = number, .table = table, .best = NOBODY };

		bpf_loop(count < MAX_COMPARED ? count : MAX_COMPARED, compare, &found, 0);
		note(TRACE_FEWEST_FLOWS, found.best_flows);
		return found.best;
	}
	if (pool->algorithm == ALGORITHM_TURNS)
		slot = (EXPLAINS ? *turn : __sync_fetch_and_add(turn, 1)) % count;
	else
		slot = slot_of(hash_of(packet, pool->hash_key)) % count;
	note(pool->algorithm == ALGORITHM_TURNS ? TRACE_SLOT_BY_TURN : TRACE_SLOT_BY_HASH, slot);
	for (int attempt = 0; attempt < TRIES; attempt++) {
		__u32 backend = backend_at(number, table, slot);

		if (is_alive(backend))
			return backend;
		note(TRACE_PASSED_OVER, backend);
		/* Away from neighbouring slots, which with turns have the same backend. */
		slot = (slot + 1 + attempt * 4099) % count;
	}
	return NOBODY;
}

#endif
