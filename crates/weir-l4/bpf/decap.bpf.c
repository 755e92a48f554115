/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Removes the outer header from packets of load balancers (RFC 2003, RFC 2473), at the ingress of a
 * backend's interface: the host's stack handles the inner packets as if they had arrived without it. A
 * separate program, which shares no map with the other. */
#include <linux/if_packet.h>

#include "packet.h"

#define NOT_OURS (-1)
#define DROPPED 2
#define CONGESTED 3

char license_of_the_program[] SEC("license") = "GPL";

/* What happened to an encapsulated packet: as TAKEN in weir-l4/src/decap.rs. */
enum taken {
	TAKEN_OFF = 0,
	/* Left to the host's stack: it was not sent by a load balancer, or is a fragment, or its header
	 * checksum is wrong. */
	LEFT_STRANGER,
	LEFT_FRAGMENT,
	LEFT_DAMAGED,
	/* Dropped: the inner packet is damaged, or not for this host; the path was congested and the
	 * packet can't express that (RFC 6040 §4.2); or the kernel refused. */
	DROP_DAMAGED,
	DROP_ELSEWHERE,
	DROP_CONGESTED,
	DROP_REFUSED,
	TAKEN,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address);
	__type(value, __u32);
} balancers SEC(".maps");

/* Allowed destinations of inner packets; without any, all addresses of this host. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address);
	__type(value, __u32);
} destinations SEC(".maps");

/* 1 if there are destinations. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} is_limited SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAKEN);
	__type(key, __u32);
	__type(value, __u64);
} taken SEC(".maps");

struct outer {
	struct address from;
	struct address to;
	struct address inner_to;
	/* Length of the outer header in bytes. */
	__u32 bytes;
	/* Traffic class of both packets. */
	__u8 class;
	__u8 inner_class;
	__u8 family;
	__u8 zero;
};

static __always_inline int end(struct __sk_buff *skb, enum taken what, int action)
{
	__u32 index = what;
	__u64 *count = bpf_map_lookup_elem(&taken, &index);

	if (count)
		*count += skb->gso_segs ? skb->gso_segs : 1;
	return action;
}

/* Whether an address is this host's. A host that does not forward is not asked, since its stack drops
 * packets for others. */
__noinline int is_local(struct __sk_buff *skb, const struct address *address, __u32 family)
{
	struct bpf_fib_lookup to = {};
	long found;

	if (!address)
		return 0;
	to.tot_len = 1;
	to.ifindex = skb->ifindex;
	if (family == 4) {
		to.family = INET4;
		to.ipv4_dst = address->words[3];
	} else {
		to.family = INET6;
		__builtin_memcpy(to.ipv6_dst, address, 16);
	}
	found = bpf_fib_lookup(skb, &to, sizeof(to), 0);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* An outer IPv4 packet: returns -1 if it is not one, or what happened to it; TAKEN_OFF if its inner packet
 * may be extracted. */
__noinline int read_ip4(struct __sk_buff *skb, struct outer *outer)
{
	struct iphdr ip, inner;
	__u32 options[10] = {}, rest;
	__u64 sum;

	if (!outer || bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5 ||
	    ip.protocol != IPPROTO_IPIP)
		return NOT_OURS;
	outer->bytes = ip.ihl * 4;
	outer->class = ip.tos;
	from_ip4(&outer->from, ip.saddr);
	from_ip4(&outer->to, ip.daddr);
	if (ip.frag_off & bpf_htons(0x3fff))
		return LEFT_FRAGMENT;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0);
	rest = outer->bytes - sizeof(ip);
	asm volatile("" : "+r"(rest));
	if (rest > sizeof(options))
		return LEFT_DAMAGED;
	asm volatile("" : "+r"(rest));
	if (rest && (rest < 4 || bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), options, rest)))
		return LEFT_DAMAGED;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)options, sizeof(options), fold(sum));
	if (fold(sum) != 0xffff)
		return LEFT_DAMAGED;
	/* A train may be longer than its header can express. */
	if (bpf_skb_load_bytes(skb, ETH_HLEN + outer->bytes, &inner, sizeof(inner)) || inner.version != 4 || inner.ihl < 5 ||
	    ((ip.tot_len || !skb->gso_size) && bpf_ntohs(ip.tot_len) < outer->bytes + bpf_ntohs(inner.tot_len)))
		return DROP_DAMAGED;
	outer->inner_class = inner.tos;
	from_ip4(&outer->inner_to, inner.daddr);
	return TAKEN_OFF;
}

__noinline int read_ip6(struct __sk_buff *skb, struct outer *outer)
{
	struct ipv6hdr ip, inner;

	if (!outer || bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_IPV6)
		return NOT_OURS;
	outer->bytes = sizeof(ip);
	outer->class = ip.priority << 4 | ip.flow_lbl[0] >> 4;
	__builtin_memcpy(&outer->from, &ip.saddr, 16);
	__builtin_memcpy(&outer->to, &ip.daddr, 16);
	if (bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &inner, sizeof(inner)) || inner.version != 6 ||
	    ((ip.payload_len || !skb->gso_size) &&
	     bpf_ntohs(ip.payload_len) < sizeof(inner) + bpf_ntohs(inner.payload_len)))
		return DROP_DAMAGED;
	outer->inner_class = inner.priority << 4 | inner.flow_lbl[0] >> 4;
	__builtin_memcpy(&outer->inner_to, &inner.daddr, 16);
	return TAKEN_OFF;
}

/* The ECN bits of the inner packet from now on (RFC 6040 §4.2); -1 if it can't express what it must. */
static __always_inline int ecn_of(__u8 outer, __u8 inner)
{
	outer &= 3;
	inner &= 3;
	if (outer == CONGESTED)
		return inner ? CONGESTED : -1;
	return outer == 1 && inner == 2 ? 1 : inner;
}

/* Sets the traffic class of a packet that has lost its outer header. */
__noinline int set_class(struct __sk_buff *skb, __u32 from, __u32 to, __u32 family)
{
	__u8 class = to;
	__u8 first[2];

	if (family == 4) {
		if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), bpf_htons(from & 0xff),
					bpf_htons(to & 0xff), 2))
			return 1;
		return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, tos), &class, 1, 0) != 0;
	}
	if (bpf_skb_load_bytes(skb, ETH_HLEN, first, sizeof(first)))
		return 1;
	first[0] = 0x60 | class >> 4;
	first[1] = class << 4 | (first[1] & 0xf);
	return bpf_skb_store_bytes(skb, ETH_HLEN, first, sizeof(first), BPF_F_RECOMPUTE_CSUM) != 0;
}

/* Whether this is an allowed destination for inner packets. */
__noinline int is_wanted(struct __sk_buff *skb, const struct outer *outer)
{
	struct address to;
	__u32 zero = 0;
	__u32 *limited;

	if (!outer)
		return 0;
	to = outer->inner_to;
	limited = bpf_map_lookup_elem(&is_limited, &zero);
	if (limited && *limited)
		return bpf_map_lookup_elem(&destinations, &to) != NULL;
	return is_local(skb, &to, outer->family);
}

SEC("classifier")
int decapsulate(struct __sk_buff *skb)
{
	struct outer outer = {};
	int said, ecn;

	if (skb->pkt_type != PACKET_HOST || is_of_vlan(skb))
		return NOT_OURS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		outer.family = 4;
		said = read_ip4(skb, &outer);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		outer.family = 6;
		said = read_ip6(skb, &outer);
	} else {
		return NOT_OURS;
	}
	if (said == NOT_OURS || !is_local(skb, &outer.to, outer.family))
		return NOT_OURS;
	if (!bpf_map_lookup_elem(&balancers, &outer.from))
		return end(skb, LEFT_STRANGER, NOT_OURS);
	if (said != TAKEN_OFF)
		return end(skb, said, said == DROP_DAMAGED ? DROPPED : NOT_OURS);
	if (!is_wanted(skb, &outer))
		return end(skb, DROP_ELSEWHERE, DROPPED);
	ecn = ecn_of(outer.class, outer.inner_class);
	if (ecn < 0)
		return end(skb, DROP_CONGESTED, DROPPED);
	/* Must come before the kernel counts the segments of a train again. */
	end(skb, TAKEN_OFF, NOT_OURS);
	if (bpf_skb_adjust_room(skb, -(__s32)outer.bytes, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return end(skb, DROP_REFUSED, DROPPED);
	if (ecn != (outer.inner_class & 3) &&
	    set_class(skb, outer.inner_class, (outer.inner_class & 0xfc) | ecn, outer.family))
		return end(skb, DROP_REFUSED, DROPPED);
	return NOT_OURS;
}
