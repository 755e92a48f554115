/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Packets that are answered here: a frame becomes the ICMP error or the reset that answers it, and goes
 * back the way it came. */
#ifndef WEIR_ANSWER_H
#define WEIR_ANSWER_H

#include "flows.h"
#include "packet.h"
#include "verdict.h"

/* Most answers of one kind that a CPU sends in a tick. Hosts limit their own in the same way (RFC 1812
 * §4.3.2.8, RFC 4443 §2.4), since each costs more than the packet that causes it. */
#define ANSWERS_PER_TICK 1000
#define HOPS 64
/* Class of errors: internetwork control (RFC 1812 §4.3.2.5). */
#define CLASS_OF_ERRORS 0xc0
/* Bytes of a transport header that an error quotes: up to the end of its checksum, which the kernel may
 * still have to fill in. */
#define QUOTED_TCP 20
#define QUOTED_UDP 8
/* Longest header that is quoted, including options or extensions; packets with a longer one are not
 * answered. */
#define MAX_QUOTED_HEADER 104

static __always_inline bool may_answer(enum answers_to to)
{
	__u32 index = to, now = now_tick();
	struct answered *here = bpf_map_lookup_elem(&answers, &index);

	if (!here)
		return false;
	if (EXPLAINS)
		return true;
	if (here->tick != now) {
		here->tick = now;
		here->count = 0;
	}
	here->count++;
	return here->count <= ANSWERS_PER_TICK;
}

/* The kernel still has to fill in the transport checksum (CHECKSUM_PARTIAL), so a change of a port leaves
 * the field as it is. Changes made here are undone. */
__noinline int sum_is_open(struct __sk_buff *skb, __u32 at)
{
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, at, &before, 2) || bpf_l4_csum_replace(skb, at, 0, 1, 2) ||
	    bpf_skb_load_bytes(skb, at, &after, 2) || bpf_l4_csum_replace(skb, at, 1, 0, 2))
		return 0;
	/* All ones came back as zero. In a checksum both mean the same, but a receiver that compares the
	 * quote sees a difference. */
	bpf_skb_store_bytes(skb, at, &before, 2, 0);
	return before == after;
}

__noinline int send_back(struct __sk_buff *skb)
{
	__u8 macs[12], swapped[12];

	untag(skb);
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return TC_ACT_SHOT;
	__builtin_memcpy(swapped, macs + 6, 6);
	__builtin_memcpy(swapped + 6, macs, 6);
	bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0);
	return bpf_redirect(skb->ifindex, 0);
}

/* Sends a finished answer, and counts it only if the kernel accepts it. `segments` is the number of
 * segments of the original packet, which is lost when its length changes. */
static __always_inline int send_answer(struct __sk_buff *skb, __u32 listener, enum verdict verdict, __u32 segments)
{
	int action = send_back(skb);

	count_segments(skb, listener, action == TC_ACT_SHOT ? DROP_NOT_REWRITTEN : verdict, segments);
	return action;
}

/* The checksum over what an error quotes: the IP header, and the beginning of the transport header. */
__noinline __s64 sum_of_quote(struct __sk_buff *skb, const struct packet *packet, __u32 from)
{
	__u8 header[MAX_QUOTED_HEADER] = {};
	__u8 transport[QUOTED_TCP] = {};
	__u32 header_bytes, transport_bytes, sum_at;
	__s64 sum;
	bool is_open;

	if (!packet)
		return -1;
	header_bytes = packet->transport - ETH_HLEN;
	is_open = packet->sum_is_open;
	transport_bytes = packet->protocol == IPPROTO_TCP ? QUOTED_TCP : QUOTED_UDP;
	sum_at = packet->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check);
	/* One bound at a time: see `sum_is_right`. */
	asm volatile("" : "+r"(header_bytes));
	if (header_bytes > sizeof(header))
		return -1;
	asm volatile("" : "+r"(header_bytes));
	if (header_bytes < 20 || bpf_skb_load_bytes(skb, from, header, header_bytes))
		return -1;
	if (transport_bytes == QUOTED_TCP) {
		if (bpf_skb_load_bytes(skb, from + header_bytes, transport, QUOTED_TCP))
			return -1;
	} else if (bpf_skb_load_bytes(skb, from + header_bytes, transport, QUOTED_UDP)) {
		return -1;
	}
	sum = bpf_csum_diff(NULL, 0, (__be32 *)transport, sizeof(transport), 0);
	if (is_open) {
		/* The value that the kernel will put into the field when it sends the frame. */
		__u16 open = *(__u16 *)(transport + (sum_at & 0x1f));
		__u16 closed = ~fold((__u32)sum);

		sum = (__u64)(__u32)sum + (__u16)~open + closed;
	}
	return (__u64)fold(sum) + (__u32)bpf_csum_diff(NULL, 0, (__be32 *)header, sizeof(header), 0);
}

/* Cuts a frame down to what is quoted, and makes `room` bytes in front of it. */
static __always_inline long quote(struct __sk_buff *skb, struct packet *packet, __u32 room)
{
	__u32 transport_bytes = packet->protocol == IPPROTO_TCP ? QUOTED_TCP : QUOTED_UDP;
	__u32 sum_at = packet->transport +
		       (packet->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));

	packet->sum_is_open = sum_is_open(skb, sum_at);
	return bpf_skb_change_tail(skb, packet->transport + transport_bytes, 0) ||
	       bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, 0);
}

/* Turns a packet into an error from its destination that quotes it. Returns nonzero if that fails. */
__noinline int quote_ip4(struct __sk_buff *skb, struct packet *packet, __u32 type_and_code)
{
	struct {
		struct iphdr ip;
		struct icmp_header icmp;
	} head = {};
	__s64 sum;

	if (!packet || quote(skb, packet, sizeof(head)))
		return 1;
	sum = sum_of_quote(skb, packet, ETH_HLEN + sizeof(head));
	if (sum < 0)
		return 1;
	head.icmp.type = type_and_code >> 8;
	head.icmp.code = type_and_code;
	head.icmp.value = bpf_htonl(packet->mtu);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&head.icmp, sizeof(head.icmp), fold(sum));
	head.icmp.sum = ~fold(sum);
	head.ip.version = 4;
	head.ip.ihl = 5;
	head.ip.tos = CLASS_OF_ERRORS;
	head.ip.ttl = HOPS;
	head.ip.protocol = IPPROTO_ICMP;
	head.ip.tot_len = bpf_htons(skb->len - ETH_HLEN);
	head.ip.saddr = packet->destination.words[3];
	head.ip.daddr = packet->source.words[3];
	head.ip.check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)&head.ip, sizeof(head.ip), 0));
	return bpf_skb_store_bytes(skb, ETH_HLEN, &head, sizeof(head), BPF_F_RECOMPUTE_CSUM) != 0;
}

__noinline int quote_ip6(struct __sk_buff *skb, struct packet *packet, __u32 type_and_code)
{
	struct {
		struct ipv6hdr ip;
		struct icmp_header icmp;
	} head = {};
	__be32 end_of_pseudo[2];
	__u32 bytes;
	__s64 sum;

	if (!packet || quote(skb, packet, sizeof(head)))
		return 1;
	sum = sum_of_quote(skb, packet, ETH_HLEN + sizeof(head));
	if (sum < 0)
		return 1;
	bytes = skb->len - ETH_HLEN - sizeof(head.ip);
	head.icmp.type = type_and_code >> 8;
	head.icmp.code = type_and_code;
	head.icmp.value = bpf_htonl(packet->mtu);
	head.ip.version = 6;
	head.ip.hop_limit = HOPS;
	head.ip.nexthdr = IPPROTO_ICMPV6;
	head.ip.payload_len = bpf_htons(bytes);
	__builtin_memcpy(&head.ip.saddr, &packet->destination, 16);
	__builtin_memcpy(&head.ip.daddr, &packet->source, 16);
	end_of_pseudo[0] = bpf_htonl(bytes);
	end_of_pseudo[1] = bpf_htonl(IPPROTO_ICMPV6);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&head.icmp, sizeof(head.icmp), fold(sum));
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&head.ip.saddr, 32, sum);
	sum = bpf_csum_diff(NULL, 0, end_of_pseudo, sizeof(end_of_pseudo), sum);
	head.icmp.sum = ~fold(sum);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &head, sizeof(head), BPF_F_RECOMPUTE_CSUM) != 0;
}

enum error {
	TOO_BIG,
	TIME_EXCEEDED,
	HOST_UNREACHABLE,
};

static __always_inline int become_error(struct __sk_buff *skb, struct packet *packet, enum error error)
{
	if (packet->family == 4)
		return quote_ip4(skb, packet,
				 error == TOO_BIG	   ? ICMP_DEST_UNREACH << 8 | ICMP_FRAG_NEEDED :
				 error == HOST_UNREACHABLE ? ICMP_DEST_UNREACH << 8 | ICMP_HOST_UNREACH :
							     ICMP_TIME_EXCEEDED << 8);
	return quote_ip6(skb, packet,
			 error == TOO_BIG	   ? ICMPV6_TOO_BIG << 8 :
			 error == HOST_UNREACHABLE ? ICMPV6_DEST_UNREACH << 8 | ICMPV6_ADDR_UNREACH :
						     ICMPV6_TIME_EXCEEDED << 8);
}

/* Answers with an error that quotes the packet: its hop limit was reached (RFC 792, RFC 4443 §3.3), or it
 * does not fit the outgoing link, whose MTU is `packet->mtu` (RFC 1191, RFC 4443 §3.2). */
static __always_inline int answer_error(struct __sk_buff *skb, struct packet *packet, __u32 listener, enum verdict error)
{
	bool is_too_big = error == VERDICT_TOO_BIG;
	enum answers_to to = !is_too_big	 ? ANSWERS_TO_ANYBODY :
			     packet->is_settled ? ANSWERS_TO_LARGE_SETTLED :
						  ANSWERS_TO_LARGE;
	__u32 segments = skb->gso_segs;

	if (packet->fragment == LATER_FRAGMENT || packet->transport > ETH_HLEN + MAX_QUOTED_HEADER || !may_answer(to))
		return drop(skb, listener, DROP_UNANSWERED);
	if (become_error(skb, packet, is_too_big ? TOO_BIG : TIME_EXCEEDED)) {
		count_segments(skb, listener, DROP_NOT_REWRITTEN, segments);
		return TC_ACT_SHOT;
	}
	return send_answer(skb, listener, error, segments);
}

/* Turns a TCP segment without a connection into the reset that answers it (RFC 9293 §3.10.7.1). */
__noinline int reset(struct __sk_buff *skb, struct packet *packet, __u32 listener)
{
	struct tcphdr segment, answer = {};
	__u32 payload, header, offset, segments;
	__be32 end_of_pseudo[2];
	bool is_open;
	__s64 sum;

	if (!packet)
		return TC_ACT_SHOT;
	header = packet->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	offset = ETH_HLEN + header;
	/* A reset is not answered, and packets with options or extensions are not worth it. */
	if (packet->protocol != IPPROTO_TCP || packet->fragment || packet->transport != offset ||
	    packet->tcp_flags & TCP_RST || packet->fault || bpf_skb_load_bytes(skb, offset, &segment, sizeof(segment)))
		return drop(skb, listener, DROP_UNKNOWN_FLOW);
	if (!may_answer(ANSWERS_TO_ANYBODY))
		return drop(skb, listener, DROP_UNANSWERED);
	segments = skb->gso_segs;
	payload = packet->size - header - segment.doff * 4;
	answer.source = segment.dest;
	answer.dest = segment.source;
	answer.doff = 5;
	answer.rst = 1;
	if (segment.ack) {
		answer.seq = segment.ack_seq;
	} else {
		answer.ack = 1;
		answer.ack_seq = bpf_htonl(bpf_ntohl(segment.seq) + payload + segment.syn + segment.fin);
	}
	is_open = sum_is_open(skb, offset + offsetof(struct tcphdr, check));
	end_of_pseudo[0] = bpf_htonl(sizeof(answer));
	end_of_pseudo[1] = bpf_htonl(IPPROTO_TCP);
	sum = bpf_csum_diff(NULL, 0, end_of_pseudo, sizeof(end_of_pseudo), 0);
	if (packet->family == 4) {
		struct iphdr ip = {};

		ip.version = 4;
		ip.ihl = 5;
		ip.ttl = HOPS;
		ip.frag_off = bpf_htons(0x4000);
		ip.protocol = IPPROTO_TCP;
		ip.tot_len = bpf_htons(sizeof(ip) + sizeof(answer));
		ip.saddr = packet->destination.words[3];
		ip.daddr = packet->source.words[3];
		ip.check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
		sum = bpf_csum_diff(NULL, 0, (__be32 *)&ip.saddr, 8, sum);
		if (bpf_skb_change_tail(skb, offset + sizeof(answer), 0) ||
		    bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			goto not_rewritten;
	} else {
		struct ipv6hdr ip = {};

		ip.version = 6;
		ip.hop_limit = HOPS;
		ip.nexthdr = IPPROTO_TCP;
		ip.payload_len = bpf_htons(sizeof(answer));
		__builtin_memcpy(&ip.saddr, &packet->destination, 16);
		__builtin_memcpy(&ip.daddr, &packet->source, 16);
		sum = bpf_csum_diff(NULL, 0, (__be32 *)&ip.saddr, 32, sum);
		if (bpf_skb_change_tail(skb, offset + sizeof(answer), 0) ||
		    bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			goto not_rewritten;
	}
	if (is_open)
		answer.check = fold(sum);
	else
		answer.check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer, sizeof(answer), sum));
	if (bpf_skb_store_bytes(skb, offset, &answer, sizeof(answer), BPF_F_RECOMPUTE_CSUM))
		goto not_rewritten;
	return send_answer(skb, listener, VERDICT_RESET, segments);

not_rewritten:
	count_segments(skb, listener, DROP_NOT_REWRITTEN, segments);
	return TC_ACT_SHOT;
}

#endif
