/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which clients may begin a flow with a listener: by its lists of networks, and by the interface that a
 * packet arrived at. */
#ifndef WEIR_ADMISSION_H
#define WEIR_ADMISSION_H

#include "maps.h"
#include "packet.h"

/* Whether the listener's lists let a client begin a flow. */
__noinline int is_admitted(const struct packet *packet, __u32 listener)
{
	struct network network = { .prefix = 160, .listener = listener };
	__u32 *said;

	if (!packet)
		return 0;
	network.address = packet->source;
	said = bpf_map_lookup_elem(&networks, &network);
	return !said || *said == ADMITTED;
}

/* Whether a listener that names its interfaces includes the one that a packet arrived at. */
__noinline int is_meant_here(struct __sk_buff *skb, __u32 listener)
{
	struct listener_interface at = { .listener = listener, .interface = skb->ifindex };

	return bpf_map_lookup_elem(&listener_interfaces, &at) != NULL;
}

/* A packet that arrives for such a listener at another interface is left to the host, as with sockets
 * bound to interfaces. */
static __always_inline bool is_past(struct __sk_buff *skb, const struct listener *listener)
{
	return listener->is_confined && !is_meant_here(skb, listener->number);
}

#endif
