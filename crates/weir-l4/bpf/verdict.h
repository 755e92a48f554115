/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The end of a packet that is ours: it is counted once, by listener. */
#ifndef WEIR_VERDICT_H
#define WEIR_VERDICT_H

#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#include "maps.h"
#include "trace.h"

/* The next program on this hook, and then the host's stack, see the packet as it arrived. */
#define NOT_OURS (-1)

static __always_inline void count_segments(struct __sk_buff *skb, __u32 listener, enum verdict verdict, __u32 segments)
{
	__u32 index = listener * VERDICTS + verdict;
	struct counter *counter;

	note(TRACE_VERDICT, verdict);
	if (EXPLAINS)
		return;
	counter = bpf_map_lookup_elem(&verdicts, &index);
	if (counter) {
		counter->packets += segments ? segments : 1;
		counter->bytes += skb->wire_len ? skb->wire_len : skb->len;
	}
}

static __always_inline void count(struct __sk_buff *skb, __u32 listener, enum verdict verdict)
{
	count_segments(skb, listener, verdict, skb->gso_segs);
}

static __always_inline int drop(struct __sk_buff *skb, __u32 listener, enum verdict verdict)
{
	count(skb, listener, verdict);
	return TC_ACT_SHOT;
}

#endif
