/* SPDX-License-Identifier: Apache-2.0 */
/* picture.h - a simulated step as an SVG picture: a lane for every stream a rank uses, a box for every stretch of work
 * of one microbatch in one direction, coloured by the kind of work. */
#ifndef TITAN_WORKER_PLAN_PICTURE_H
#define TITAN_WORKER_PLAN_PICTURE_H

#include "worker/plan/simulate.h"

void picture_write(const struct simulation *s, const char *title, struct buf *out);

#endif
