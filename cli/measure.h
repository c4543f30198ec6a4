/* SPDX-License-Identifier: Apache-2.0 */
/* Time, as the command tells it. */
#ifndef RAPT_CLI_MEASURE_H
#define RAPT_CLI_MEASURE_H

/* Seconds since some moment. */
double measure_now(void);

/* What lies at this share, 0 to 1, of the numbers, which it sorts; 0.5 is the median. */
double measure_quantile(double *numbers, int count, double share);

#endif
