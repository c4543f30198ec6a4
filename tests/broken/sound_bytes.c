/* SPDX-License-Identifier: Apache-2.0 */
/* Another control: integers multiplied as bytes, four in a lane, which in the library needs instructions that not every machine
 * has. */
#define RAPT_KERNEL_NAME sound_bytes
#define BYTES_IN_DOTS
#include "words.h"

#include "attend.h"
