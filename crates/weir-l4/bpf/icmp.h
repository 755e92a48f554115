/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ICMP errors about packets of a flow: they are sent to the sender of those packets, and describe the
 * packets as that sender knows them.
 *
 * An error quotes the packet that it is about. The quoted packet went in the opposite direction, so the
 * flow of that direction says how the quoted addresses are translated (RFC 5508 §4.2). */
#ifndef WEIR_ICMP_H
#define WEIR_ICMP_H

#include "packet.h"
#include "rewrite.h"

/* Length of an error's own header, before the quote. */
#define ICMP_HEADER 8

/* What an error quotes. */
struct quoted {
	/* The key of the flow in the other direction. */
	struct flow_key6 opposite;
	/* Offsets of its IP header and its transport header in the frame. */
	__u16 header;
	__u16 transport;
};

static __always_inline bool is_error4(__u8 type)
{
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER_PROBLEM ||
	       type == ICMP_SOURCE_QUENCH;
}

static __always_inline bool is_error(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 type;

	if (bpf_skb_load_bytes(skb, packet->transport, &type, 1))
		return false;
	if (packet->family == 4)
		return packet->protocol == IPPROTO_ICMP && is_error4(type);
	/* Errors have types below 128 (RFC 4443 §2.1). */
	return packet->protocol == IPPROTO_ICMPV6 && type && type < 128;
}

/* Parses the quoted packet, which begins at `header`. False if it is neither TCP nor UDP, or too little of
 * it is quoted. */
__noinline int read_quoted(struct __sk_buff *skb, const struct packet *packet, struct quoted *quoted)
{
	__be16 ports[2];

	if (!packet || !quoted)
		return 0;
	if (packet->family == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, quoted->header, &ip, sizeof(ip)))
			return 0;
		if (ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(0x1fff))
			return 0;
		quoted->transport = quoted->header + ip.ihl * 4;
		quoted->opposite.protocol = ip.protocol;
		from_ip4(&quoted->opposite.source, ip.daddr);
		from_ip4(&quoted->opposite.destination, ip.saddr);
	} else {
		struct walk walk = {};
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, quoted->header, &ip, sizeof(ip)) || ip.version != 6)
			return 0;
		walk.offset = quoted->header + sizeof(ip);
		walk.next = ip.nexthdr;
		if (!walk_extensions(skb, &walk) || walk.fragment == LATER_FRAGMENT)
			return 0;
		if (is_mapped((struct address *)&ip.saddr) || is_mapped((struct address *)&ip.daddr))
			return 0;
		quoted->transport = walk.offset;
		quoted->opposite.protocol = walk.next;
		__builtin_memcpy(&quoted->opposite.source, &ip.daddr, 16);
		__builtin_memcpy(&quoted->opposite.destination, &ip.saddr, 16);
	}
	if (quoted->opposite.protocol != IPPROTO_TCP && quoted->opposite.protocol != IPPROTO_UDP)
		return 0;
	/* Bytes after the packet's end are padding of the frame. */
	if (quoted->transport + ICMP_HEADER > ETH_HLEN + packet->size ||
	    bpf_skb_load_bytes(skb, quoted->transport, ports, sizeof(ports)) || !ports[0] || !ports[1])
		return 0;
	quoted->opposite.source_port = ports[1];
	quoted->opposite.destination_port = ports[0];
	return 1;
}

/* Bytes that are summed at once; a power of two. */
#define SUMMED_BYTES 64
/* Number of pieces in the longest packet. */
#define MAX_SUMMED (0x10000 / SUMMED_BYTES + 1)

/* A checksum over bytes of a frame, while it is computed. */
struct summing {
	struct __sk_buff *skb;
	__u64 sum;
	__u32 from;
	__u32 end;
};

/* Adds a piece. Returns 1 to stop. */
static long sum_piece(__u32 number, struct summing *summing)
{
	__u8 bytes[SUMMED_BYTES] = {};
	__u32 at = summing->from + number * SUMMED_BYTES;
	__u32 last = summing->end - at - 1;

	if (at >= summing->end)
		return 1;
	if (last >= SUMMED_BYTES)
		last = SUMMED_BYTES - 1;
	/* The verifier of Linux 6.1 can tell from a mask, but not from a comparison with 0, that at least
	 * one byte is read. */
	asm volatile("" : "+r"(last));
	last &= SUMMED_BYTES - 1;
	if (bpf_skb_load_bytes(summing->skb, at, bytes, last + 1)) {
		/* A value that never matches. */
		summing->sum = 0;
		return 1;
	}
	summing->sum += (__u32)bpf_csum_diff(NULL, 0, (__be32 *)bytes, sizeof(bytes), 0);
	return 0;
}

/* Whether the checksum of a whole ICMP message is right (RFC 792; with the pseudo-header RFC 4443 §2.3). */
__noinline int icmp_sum_is_right(struct __sk_buff *skb, const struct packet *packet)
{
	struct summing summing = { .skb = skb };
	__u32 bytes;

	if (!packet || ETH_HLEN + packet->size < packet->transport)
		return 0;
	bytes = ETH_HLEN + packet->size - packet->transport;
	summing.from = packet->transport;
	summing.end = ETH_HLEN + packet->size;
	if (packet->family == 6) {
		summing.sum = (__u32)bpf_csum_diff(NULL, 0, (__be32 *)&packet->source, 32, 0);
		summing.sum += (__u64)bpf_htonl(bytes) + bpf_htonl(IPPROTO_ICMPV6);
	}
	bpf_loop(MAX_SUMMED, sum_piece, &summing, 0);
	return fold(summing.sum) == 0xffff;
}

/* Updates the checksum in the quoted transport header, if it is quoted; returns by how much the field
 * changed. */
static __always_inline __s64 rewrite_quoted_sum(struct __sk_buff *skb, const struct packet *packet,
						const struct quoted *quoted, __u64 difference)
{
	__u32 at = quoted->transport + (quoted->opposite.protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
										    offsetof(struct udphdr, check));
	__be32 before = 0, after = 0;
	__u16 sum;

	if (at + sizeof(sum) > ETH_HLEN + packet->size || bpf_skb_load_bytes(skb, at, &sum, sizeof(sum)))
		return 0;
	if (quoted->opposite.protocol == IPPROTO_UDP && sum == 0)
		return 0;
	*(__u16 *)&before = sum;
	/* May have more than 32 bits on kernels that do not fold the result (before Linux 6.13). */
	sum = ~fold((__u64)(__u16)~sum + difference);
	*(__u16 *)&after = sum;
	bpf_skb_store_bytes(skb, at, &sum, sizeof(sum), 0);
	return bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), 0);
}

/* Least MTU towards clients that a backend with full-NAT is told: the minimum for IPv6 (RFC 8200 §5). */
#define LEAST_SHARED_MTU 1280

/* With full-NAT a backend knows all clients by the same addresses, and stores the path MTU by address: a
 * report about the path to one client must not make the packets to all others small. Raises the MTU in an
 * error for a backend; returns by how much the checksum over it changes. */
__noinline int raise_mtu(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct icmp_header icmp;
	__be32 before, after;
	__u32 beside;

	if (!packet || !flow || flow->forward != FORWARD_FULL_NAT || flow->direction != TO_BACKEND ||
	    bpf_skb_load_bytes(skb, packet->transport, &icmp, sizeof(icmp)))
		return 0;
	if (packet->family == 4 ? icmp.type != ICMP_DEST_UNREACH || icmp.code != ICMP_FRAG_NEEDED
				: icmp.type != ICMPV6_TOO_BIG)
		return 0;
	before = icmp.value;
	/* The other bits of the word do not belong to it (RFC 4884 §4.1). */
	beside = packet->family == 4 ? bpf_ntohl(before) & 0xffff0000 : 0;
	if (bpf_ntohl(before) - beside >= LEAST_SHARED_MTU)
		return 0;
	after = bpf_htonl(beside | LEAST_SHARED_MTU);
	if (bpf_skb_store_bytes(skb, packet->transport + offsetof(struct icmp_header, value), &after, sizeof(after), 0))
		return 0;
	return fold((__u32)bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), 0));
}

/* Turns the quote into the packet that the receiver has sent, and the error into one for the receiver.
 * `flow` is the flow of the opposite direction. All checksums outside and inside are updated; in sum over
 * all bytes of the packet only the IPv6 hop limit changes, so CHECKSUM_COMPLETE needs no other adjustment. */
__noinline int rewrite_icmp(struct __sk_buff *skb, const struct packet *packet, const struct quoted *quoted,
				   const struct flow *flow)
{
	struct address before[2], after[2];
	__s64 inner, outer, ports, change;
	__be16 ports_before[2], ports_after[2];
	__u32 sum_at;
	long failed = 0;
	__u8 hop_limit;

	if (!packet || !quoted || !flow)
		return 1;
	ports_before[0] = quoted->opposite.destination_port;
	ports_before[1] = quoted->opposite.source_port;
	ports_after[0] = flow->destination_port;
	ports_after[1] = flow->source_port;
	ports = bpf_csum_diff((__be32 *)ports_before, 4, (__be32 *)ports_after, 4, 0);
	before[0] = quoted->opposite.destination;
	before[1] = quoted->opposite.source;
	after[0] = flow->destination;
	after[1] = flow->source;
	inner = bpf_csum_diff((__be32 *)before, 32, (__be32 *)after, 32, 0);
	change = (__u64)(__u32)rewrite_quoted_sum(skb, packet, quoted, (__u64)(__u32)inner + (__u32)ports) + (__u32)ports;
	change = (__u64)change + (__u32)raise_mtu(skb, packet, flow);
	failed |= bpf_skb_store_bytes(skb, quoted->transport, ports_after, sizeof(ports_after), 0);
	if (packet->family == 4) {
		__be32 addresses[2] = { after[0].words[3], after[1].words[3] };

		failed |= bpf_l3_csum_replace(skb, quoted->header + offsetof(struct iphdr, check), 0, inner, 0);
		failed |= bpf_skb_store_bytes(skb, quoted->header + offsetof(struct iphdr, saddr), addresses,
					      sizeof(addresses), 0);
	} else {
		failed |= bpf_skb_store_bytes(skb, quoted->header + offsetof(struct ipv6hdr, saddr), after, 32, 0);
	}
	before[0] = packet->source;
	before[1] = packet->destination;
	/* What a backend, or a router behind us, reports appears to come from the listener; and a backend
	 * without a route to clients gets reports of their routers from the address that sends on their
	 * behalf. */
	after[0] = flow->direction == TO_BACKEND && flow->forward == FORWARD_NAT ? packet->source : flow->source;
	after[1] = flow->destination;
	outer = bpf_csum_diff((__be32 *)before, 32, (__be32 *)after, 32, 0);
	hop_limit = packet->hop_limit - 1;
	sum_at = packet->transport + offsetof(struct icmp_header, sum);
	if (packet->family == 4) {
		__be32 addresses[2] = { after[0].words[3], after[1].words[3] };
		__be16 from = bpf_htons((__u16)packet->hop_limit << 8), to = bpf_htons((__u16)hop_limit << 8);

		failed |= bpf_l3_csum_replace(skb, SUM_OF_IP4, 0, outer, 0);
		failed |= bpf_l3_csum_replace(skb, SUM_OF_IP4, from, to, 2);
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &hop_limit, 1, 0);
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, saddr), addresses,
					      sizeof(addresses), 0);
	} else {
		change = (__u64)change + (__u32)inner + (__u32)outer;
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, saddr), after, 32, 0);
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &hop_limit, 1,
					      BPF_F_RECOMPUTE_CSUM);
	}
	failed |= bpf_l4_csum_replace(skb, sum_at, 0, fold(change), 0);
	return failed != 0;
}

#endif
