/* SPDX-License-Identifier: Apache-2.0 */
/* Time, as the checks and the command tell it. */
#ifndef RAPT_CHECK_CLOCK_H
#define RAPT_CHECK_CLOCK_H

/* Seconds since some moment. */
double clock_now(void);

#endif
