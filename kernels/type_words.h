/* SPDX-License-Identifier: Apache-2.0 */
/* The words of every storage type of types.h that has any: the one list of their files. What groups share has scales of
 * f16, so it comes after that. */
#include "types.h"
#include "type_f32.h"
#include "type_f16.h"
#include "type_bf16.h"
#include "groups.h"
#include "type_f8_e4m3.h"
#include "type_f8_e5m2.h"
#include "type_int8.h"
#include "type_int4.h"
#include "type_int4_min.h"
#include "type_q8_0.h"
#include "type_q4_0.h"
#include "type_q4_1.h"
#include "type_q5_0.h"
#include "type_q5_1.h"
#include "type_mxfp4.h"
