/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The way back from backends without a flow. */
#ifndef WEIR_ORIGINS_H
#define WEIR_ORIGINS_H

#include <stddef.h>

#include "maps.h"

/* The origin for the source of an answer, with the number of the backend; NULL if there is none. A backend
 * without a port of its own answers from the ports of its listeners, as others do: its group has an origin
 * for each port. */
static __always_inline struct origin *origin_at(struct endpoint *at, __u32 *backend)
{
	struct origin *origin = bpf_map_lookup_elem(&origins, at);
	__be16 port = at->port;
	struct settings *said;
	__u32 zero = 0;

	if (origin) {
		*backend = origin->backend;
		return origin;
	}
	said = bpf_map_lookup_elem(&settings, &zero);
	if (!said || !said->has_groups)
		return NULL;
	at->port = 0;
	origin = bpf_map_lookup_elem(&origins, at);
	if (!origin || !(origin->uses & USE_ANY_PORT))
		return NULL;
	*backend = origin->backend;
	at->address = origin->address;
	at->port = port;
	at->is_group = 1;
	return bpf_map_lookup_elem(&origins, at);
}

#endif
