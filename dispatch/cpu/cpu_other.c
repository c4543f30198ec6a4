/* SPDX-License-Identifier: Apache-2.0 */
/* CPU families without features that any kernel needs. */
#include "cpu/cpu.h"

uint32_t rapt_cpu_features_detect(void) { return 0; }

uint32_t rapt_cpu_slow_detect(void) { return 0; }

size_t rapt_cpu_l2_detect(void) { return 0; }
