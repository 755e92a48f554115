/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Rewrites addresses and ports of a packet, and updates the checksums over them. Damaged packets stay
 * damaged: checksums are updated by the difference, never computed anew. */
#ifndef WEIR_REWRITE_H
#define WEIR_REWRITE_H

#include "packet.h"

#define SUM_OF_IP4 (ETH_HLEN + offsetof(struct iphdr, check))

/* Where the transport checksum is, and how the kernel should treat it. */
static __always_inline __u32 sum_of_transport(const struct packet *packet, __u64 *flags)
{
	if (packet->protocol == IPPROTO_TCP) {
		*flags = 0;
		return packet->transport + offsetof(struct tcphdr, check);
	}
	/* A checksum of 0 means that there is none (RFC 768), so a checksum must not become 0. */
	*flags = BPF_F_MARK_MANGLED_0;
	return packet->transport + offsetof(struct udphdr, check);
}

static __always_inline bool has_sum(struct __sk_buff *skb, const struct packet *packet, __u32 at)
{
	__u16 sum = 0;

	return packet->protocol == IPPROTO_TCP || (!bpf_skb_load_bytes(skb, at, &sum, sizeof(sum)) && sum);
}

/* By how much one's complement sums over this many words change, folded to 32 bits. */
static __always_inline __u32 difference_of(const __be32 *from, const __be32 *to, __u32 words)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < words; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

static __always_inline long rewrite_ip4(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	__be32 from[2] = { packet->source.words[3], packet->destination.words[3] };
	/* The header from the hop limit on. */
	struct {
		__u8 hop_limit;
		__u8 protocol;
		__u16 sum;
		__be32 addresses[2];
	} to = { .hop_limit = packet->hop_limit - 1,
		 .protocol = packet->protocol,
		 .addresses = { flow->source.words[3], flow->destination.words[3] } };
	__u32 difference = difference_of(from, to.addresses, 2);
	__u64 flags, sum;
	__u32 at = sum_of_transport(packet, &flags);
	long failed = 0;

	if (packet->fragment != LATER_FRAGMENT)
		failed |= bpf_l4_csum_replace(skb, at, 0, difference, flags | BPF_F_PSEUDO_HDR);
	/* In memory, hop limit and protocol are one word of the checksum, with the hop limit in the lower
	 * byte. */
	sum = (__u64)(__u16)~packet->header_sum + difference + (__u16)~(packet->hop_limit | packet->protocol << 8) +
	      (__u16)(to.hop_limit | to.protocol << 8);
	to.sum = ~fold(sum);
	return failed | put_words(skb, ETH_HLEN + offsetof(struct iphdr, ttl), (__u32 *)&to, sizeof(to) / 4);
}

static __always_inline long rewrite_ip6(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct address from[2] = { packet->source, packet->destination };
	/* From the hop limit on, the header has the same layout as this; what precedes it is not stored. */
	struct {
		__u8 zero[3];
		__u8 hop_limit;
		struct address addresses[2];
	} to = { .hop_limit = packet->hop_limit - 1, .addresses = { flow->source, flow->destination } };
	__u64 flags;
	__u32 sum = sum_of_transport(packet, &flags);
	__u32 difference = difference_of((__be32 *)from, (__be32 *)to.addresses, sizeof(from) / 4);
	long failed = 0;

	/* For a checksum over the whole packet (CHECKSUM_COMPLETE) the kernel subtracts the difference as
	 * is right for IPv4, whose header has a checksum that balances the addresses. IPv6 has none:
	 * storing with RECOMPUTE adds it again. */
	if (packet->fragment != LATER_FRAGMENT)
		failed |= bpf_l4_csum_replace(skb, sum, 0, difference, flags | BPF_F_PSEUDO_HDR);
	failed |= bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &to.hop_limit, 33,
				      BPF_F_RECOMPUTE_CSUM);
	return failed;
}

/* Decrements the hop limit of a packet that is otherwise forwarded unchanged. */
__noinline int age(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 hop_limit;
	long failed;

	if (!packet)
		return 1;
	hop_limit = packet->hop_limit - 1;
	if (packet->family == 4) {
		__be16 from = bpf_htons((__u16)packet->hop_limit << 8), to = bpf_htons((__u16)hop_limit << 8);

		failed = bpf_l3_csum_replace(skb, SUM_OF_IP4, from, to, 2);
		failed |= bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &hop_limit, 1, 0);
	} else {
		failed = bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &hop_limit, 1,
					     BPF_F_RECOMPUTE_CSUM);
	}
	return failed != 0;
}

/* Rewrites a packet as its flow says, and decrements its hop limit. Returns nonzero if the packet can't be
 * written. */
__noinline int rewrite(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	__be16 from[2], to[2] __attribute__((aligned(4)));
	__u64 flags;
	__u32 sum;
	long failed;

	if (!packet || !flow)
		return 1;
	if (packet->family == 4)
		failed = rewrite_ip4(skb, packet, flow);
	else
		failed = rewrite_ip6(skb, packet, flow);
	if (failed || packet->fragment == LATER_FRAGMENT)
		return failed != 0;
	from[0] = packet->source_port;
	from[1] = packet->destination_port;
	to[0] = flow->source_port;
	to[1] = flow->destination_port;
	if (from[0] == to[0] && from[1] == to[1])
		return 0;
	sum = sum_of_transport(packet, &flags);
	/* The change of the checksum balances that of the ports, if there is a checksum. */
	failed |= bpf_l4_csum_replace(skb, sum, *(__u32 *)from, *(__u32 *)to, flags | sizeof(to));
	if (has_sum(skb, packet, sum))
		failed |= put_words(skb, packet->transport, (__u32 *)to, 1);
	else
		failed |= bpf_skb_store_bytes(skb, packet->transport, to, sizeof(to), BPF_F_RECOMPUTE_CSUM);
	return failed != 0;
}

#endif
