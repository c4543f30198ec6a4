/* SPDX-License-Identifier: Apache-2.0 */
/* A program of somebody who has installed rapt. */
#include <rapt_pool.h>

int main(void) {
    rapt_pool *pool = rapt_pool_create(2);
    int bad = rapt_pool_threads(pool) != 2 || rapt_version() == 0;
    rapt_pool_destroy(pool);
    return bad;
}
