/* SPDX-License-Identifier: Apache-2.0 */
/* Not broken: the control. */
#define RAPT_KERNEL_NAME sound
#include "words.h"

#include "attend.h"
