/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The program's second variant, for explanations: compiled with WEIR_EXPLAINS it decides by the same maps
 * and records each step, but stores no flow and counts nothing. It is never attached, and runs on made-up
 * packets. The program that forwards contains none of this. */
#ifndef WEIR_TRACE_H
#define WEIR_TRACE_H

#include "maps.h"

#ifdef WEIR_EXPLAINS
#define EXPLAINS 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace);
} trace SEC(".maps");

static __always_inline void note(enum trace_step step, __u32 value)
{
	__u32 zero = 0, at;
	struct trace *steps = bpf_map_lookup_elem(&trace, &zero);

	if (!steps)
		return;
	at = steps->count;
	if (at >= TRACE_STEPS)
		return;
	steps->steps[at].step = step;
	steps->steps[at].value = value;
	steps->count = at + 1;
}
#else
#define EXPLAINS 0

static __always_inline void note(enum trace_step step, __u32 value)
{
	(void)step;
	(void)value;
}
#endif

#endif
