/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Parsing of a packet: addresses, ports, and the offsets of its parts. */
#ifndef WEIR_PACKET_H
#define WEIR_PACKET_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "layout.h"

#define INET4 2
#define INET6 10

/* Most extension headers that are parsed (RFC 8200 §4): more would only serve to hide something. */
#define MAX_EXTENSIONS 6
/* Bytes of a frame that must be contiguous: Ethernet, the longest IPv4 header, TCP without options. */
#define HEAD_BYTES (ETH_HLEN + 60 + 20)

/* Types and codes of ICMP (RFC 792) and ICMPv6 (RFC 4443): the kernel's header for the former includes the
 * C library. */
#define ICMP_DEST_UNREACH 3
#define ICMP_HOST_UNREACH 1
#define ICMP_FRAG_NEEDED 4
#define ICMP_SOURCE_QUENCH 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_ADDR_UNREACH 3
#define ICMPV6_TOO_BIG 2
#define ICMPV6_TIME_EXCEEDED 3

struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 sum;
	/* The next hop's MTU, or unused. */
	__be32 value;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum fragment_kind {
	WHOLE = 0,
	FIRST_FRAGMENT = 1,
	LATER_FRAGMENT = 2,
};

struct packet {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	/* 4 or 6. */
	__u8 family;
	/* Protocol of the transport header, after all extension headers. */
	__u8 protocol;
	__u8 hop_limit;
	__u8 tcp_flags;
	__u8 fragment;
	/* Why it can't be forwarded, if it is ours: a verdict; 0 if it can. */
	__u8 fault;
	/* An IPv4 packet that routers must not fragment. */
	__u8 is_whole;
	/* The kernel still has to fill in the transport checksum; set when that was checked. */
	__u8 sum_is_open;
	/* Its pool chooses by a hash; set when that was checked. */
	__u8 is_hashed;
	/* Its flow is settled; set if it does not fit. */
	__u8 is_settled;
	/* Offset of the transport header in the frame. */
	__u16 transport;
	/* Bytes from the IP header to the packet's end, according to the header. */
	__u32 size;
	__be32 fragment_id;
	/* The MTU of the outgoing link, if the packet does not fit. */
	__u16 mtu;
	/* Of the IPv4 header, as it arrived. */
	__u16 header_sum;
	/* Time of arrival, in ticks. */
	__u32 now;
};

/* Whether a segment opens a connection. With RST it opens none (RFC 9293 §3.10.7.2), and with FIN hosts
 * silently drop it as a scan. */
static __always_inline bool opens(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP &&
	       (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* A tick is 2^30 ns of CLOCK_MONOTONIC. */
static __always_inline __u32 now_tick(void)
{
	return bpf_ktime_get_coarse_ns() >> 30;
}

static __always_inline void from_ip4(struct address *address, __be32 ip4)
{
	address->words[0] = 0;
	address->words[1] = 0;
	address->words[2] = bpf_htonl(0xffff);
	address->words[3] = ip4;
}

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
	return a->words[3] == b->words[3] && a->words[2] == b->words[2] && a->words[1] == b->words[1] &&
	       a->words[0] == b->words[0];
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Whether the checksum of an IPv4 header of `bytes` bytes is right. */
static __always_inline bool sum_is_right(struct __sk_buff *skb, const struct iphdr *ip, __u32 bytes)
{
	const __u32 *words = (const __u32 *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];
	__u32 options[10] = {};

	if (bytes > sizeof(*ip)) {
		__u32 rest = bytes - sizeof(*ip);

		/* The compiler knows the range of four bits, but the verifier does not, and requires a
		 * check. From two bounds in one comparison, that of Linux 6.1 learns nothing. */
		asm volatile("" : "+r"(rest));
		if (rest > sizeof(options))
			return false;
		asm volatile("" : "+r"(rest));
		if (rest < 4 || bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(*ip), options, rest))
			return false;
#pragma unroll
		for (int at = 0; at < 10; at++)
			sum += options[at];
	}
	return fold(sum) == 0xffff;
}

/* Reads the ports, and the TCP flags. False if they are incomplete. */
static __always_inline bool read_transport(struct __sk_buff *skb, struct packet *packet)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 offset = packet->transport;
	__be16 ports[2];

	if (packet->fragment == LATER_FRAGMENT || packet->protocol == IPPROTO_ICMP ||
	    packet->protocol == IPPROTO_ICMPV6)
		return true;
	if (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP)
		return false;
	asm volatile("" : "+r"(offset));
	if (offset < HEAD_BYTES && data + offset + 14 <= end) {
		/* As for nearly every packet: it is contiguous, and read without a helper call. */
		ports[0] = ((__be16 *)(data + offset))[0];
		ports[1] = ((__be16 *)(data + offset))[1];
		packet->tcp_flags = ((__u8 *)(data + offset))[13];
	} else if (bpf_skb_load_bytes(skb, offset, ports, sizeof(ports)) ||
		   (packet->protocol == IPPROTO_TCP && bpf_skb_load_bytes(skb, offset + 13, &packet->tcp_flags, 1))) {
		return false;
	}
	packet->source_port = ports[0];
	packet->destination_port = ports[1];
	if (packet->protocol == IPPROTO_UDP)
		packet->tcp_flags = 0;
	if (packet->protocol == IPPROTO_TCP) {
		if (ETH_HLEN + packet->size < packet->transport + sizeof(struct tcphdr))
			packet->fault = DROP_TRUNCATED;
	} else if (ETH_HLEN + packet->size < packet->transport + sizeof(struct udphdr)) {
		packet->fault = DROP_TRUNCATED;
	}
	return true;
}

/* A train of more than 64 KiB, whose header can't contain its length (BIG TCP): the actual length counts. */
static __always_inline void measure(const struct __sk_buff *skb, struct packet *packet, __u32 said)
{
	if (!said && skb->gso_size && packet->protocol == IPPROTO_TCP)
		packet->size = skb->len - ETH_HLEN;
}

static __always_inline bool parse_ip4(struct __sk_buff *skb, struct packet *packet)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + ETH_HLEN;
	__u32 header;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return false;
	header = ip->ihl * 4;
	packet->family = 4;
	packet->protocol = ip->protocol;
	packet->hop_limit = ip->ttl;
	packet->header_sum = ip->check;
	packet->size = bpf_ntohs(ip->tot_len);
	measure(skb, packet, packet->size);
	packet->transport = ETH_HLEN + header;
	from_ip4(&packet->source, ip->saddr);
	from_ip4(&packet->destination, ip->daddr);
	packet->is_whole = (ip->frag_off & bpf_htons(0x4000)) != 0;
	if (ip->frag_off & bpf_htons(0x3fff)) {
		packet->fragment = ip->frag_off & bpf_htons(0x1fff) ? LATER_FRAGMENT : FIRST_FRAGMENT;
		packet->fragment_id = ip->id;
	}
	if (!sum_is_right(skb, ip, header))
		packet->fault = DROP_BAD_HEADER;
	else if (packet->size < header || ETH_HLEN + packet->size > skb->len)
		packet->fault = DROP_TRUNCATED;
	return true;
}

/* The position while parsing the extension headers of IPv6. */
struct walk {
	/* Offset of the next header in the frame. */
	__u32 offset;
	__be32 fragment_id;
	__u8 next;
	__u8 fragment;
	__u8 zero[2];
};

/* Moves on to the transport header. False if a header is incomplete, or lists addresses still to be
 * visited: then this host is not the packet's final destination, and its checksum is over another address
 * than the one in its header (RFC 8200 §8.1). */
__noinline int walk_extensions(struct __sk_buff *skb, struct walk *walk)
{
	if (!walk)
		return 0;
	for (int at = 0; at < MAX_EXTENSIONS; at++) {
		__u8 head[8];

		if (walk->next != IPPROTO_HOPOPTS && walk->next != IPPROTO_ROUTING && walk->next != IPPROTO_DSTOPTS &&
		    walk->next != IPPROTO_FRAGMENT)
			break;
		if (bpf_skb_load_bytes(skb, walk->offset, head, sizeof(head)))
			return 0;
		if (walk->next == IPPROTO_ROUTING && head[3])
			return 0;
		if (walk->next == IPPROTO_FRAGMENT) {
			__u16 place = (__u16)head[2] << 8 | head[3];

			/* An unfragmented packet may also have the header (RFC 8200 §4.5, RFC 6946). */
			if (place & 0xfff9) {
				walk->fragment = place & 0xfff8 ? LATER_FRAGMENT : FIRST_FRAGMENT;
				__builtin_memcpy(&walk->fragment_id, head + 4, 4);
			}
			walk->offset += 8;
		} else {
			walk->offset += 8 + head[1] * 8;
		}
		walk->next = head[0];
		if (walk->fragment == LATER_FRAGMENT)
			break;
	}
	return 1;
}

static __always_inline bool parse_ip6(struct __sk_buff *skb, struct packet *packet)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip = data + ETH_HLEN;
	struct walk walk = { .offset = ETH_HLEN + sizeof(*ip) };

	if ((void *)(ip + 1) > end || ip->version != 6)
		return false;
	packet->family = 6;
	packet->is_whole = true;
	packet->hop_limit = ip->hop_limit;
	packet->size = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	__builtin_memcpy(&packet->source, &ip->saddr, 16);
	__builtin_memcpy(&packet->destination, &ip->daddr, 16);
	if (ETH_HLEN + packet->size > skb->len)
		packet->fault = DROP_TRUNCATED;
	walk.next = ip->nexthdr;
	if (!walk_extensions(skb, &walk))
		return false;
	packet->protocol = walk.next;
	packet->transport = walk.offset;
	measure(skb, packet, packet->size - sizeof(*ip));
	packet->fragment = walk.fragment;
	packet->fragment_id = walk.fragment_id;
	return true;
}

/* Whether a frame's tag names a VLAN. A tag with VLAN 0 only has a priority, and the frame belongs to the
 * interface itself (IEEE 802.1Q §9.6). */
static __always_inline bool is_of_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0xfff;
}

/* Removes a tag that names no VLAN, since the outgoing link has none. Pointers into the packet become
 * invalid. */
static __always_inline void untag(struct __sk_buff *skb)
{
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
}

/* ::ffff:0:0/96 stands for IPv4 in our maps, and must not appear on the wire (RFC 4291 §2.5.5.2). */
static __always_inline bool is_mapped(const struct address *address)
{
	return address->words[0] == 0 && address->words[1] == 0 && address->words[2] == bpf_htonl(0xffff);
}

/* An address that is not a valid source (RFC 1812 §5.3.7, RFC 4291 §2.5 and §2.7): the host's own stack
 * drops its packets. */
static __always_inline bool is_martian(const struct packet *packet)
{
	__u32 first = bpf_ntohl(packet->source.words[0]), last = bpf_ntohl(packet->source.words[3]);

	if (packet->family == 4)
		return last >> 24 == 0 || last >> 24 == 127 || last >> 24 >= 224;
	if (is_mapped(&packet->source) || is_mapped(&packet->destination))
		return true;
	if (first == 0 && packet->source.words[1] == 0 && packet->source.words[2] == 0)
		return last <= 1;
	return first >> 22 == 0xfe80 >> 6 || first >> 24 == 0xff;
}

/* Stores words in a packet's headers: directly if they are contiguous, as the helper takes several times
 * as long. The checksum over the whole packet (CHECKSUM_COMPLETE), if there is one, is not updated. */
static __always_inline long put_words(struct __sk_buff *skb, __u32 at, const __u32 *words, __u32 count)
{
	void *end = (void *)(long)skb->data_end;
	__u32 *to;

	if (at >= 2 * HEAD_BYTES)
		return bpf_skb_store_bytes(skb, at, words, count * 4, 0);
	to = (void *)(long)skb->data + at;
	if ((void *)(to + count) > end)
		return bpf_skb_store_bytes(skb, at, words, count * 4, 0);
	for (__u32 i = 0; i < count; i++)
		to[i] = words[i];
	return 0;
}

/* Fills in `packet`; false if a listener can't take it, so that it is left to the host. */
__noinline int parse(struct __sk_buff *skb, struct packet *packet)
{
	__u32 head = skb->len < HEAD_BYTES ? skb->len : HEAD_BYTES;
	bool is_ip;

	if (!packet)
		return 0;
	if ((void *)(long)skb->data + head > (void *)(long)skb->data_end && bpf_skb_pull_data(skb, head))
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		is_ip = parse_ip4(skb, packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		is_ip = parse_ip6(skb, packet);
	else
		return 0;
	packet->now = now_tick();
	return is_ip && read_transport(skb, packet);
}

#endif
