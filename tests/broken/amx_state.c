/* SPDX-License-Identifier: Apache-2.0 */
/* What all objects of amx_emulated share. */
#include "amx_tiles.h"

static _Thread_local bool tiles_configured;

bool emulated_configured(void) { return tiles_configured; }
void emulated_set_configured(bool configured) { tiles_configured = configured; }
