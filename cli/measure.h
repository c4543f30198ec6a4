/* SPDX-License-Identifier: Apache-2.0 */
/* What the command says of times. */
#ifndef RAPT_CLI_MEASURE_H
#define RAPT_CLI_MEASURE_H

/* What lies at this share, 0 to 1, of the numbers, which it sorts; 0.5 is the median. */
double measure_quantile(double *numbers, int count, double share);

#endif
