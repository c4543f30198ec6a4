/* SPDX-License-Identifier: Apache-2.0 */
/* What a client of the library has to say, one compiled against the recorded headers of an older version and one against those of
 * today: a list of facts, which must be the same. */
#ifndef RAPT_ABI_CLIENT_H
#define RAPT_ABI_CLIENT_H

#include <stdint.h>

typedef struct client_fact {
    const char *of, *what;
    uint64_t value;
} client_fact;

typedef struct client_facts {
    int count;
    client_fact at[600];
} client_facts;

/* What the compiler made of the headers: constants, the place and size of every field that version 0.1 has, the sizes of structs.
 */
void recorded_layout(client_facts *facts);
void current_layout(client_facts *facts);

/* What the library computes for that client on that kernel: statuses and hashes. */
void recorded_results(const char *isa, client_facts *facts);
void current_results(const char *isa, client_facts *facts);

#endif
