/* SPDX-License-Identifier: Apache-2.0 */
/* plot.h - a curve in the terminal: braille dots (2x4 to a cell) where the locale is UTF-8, asterisks elsewhere; and
 * single values beside it as crosses (+). */
#ifndef TITAN_CTL_PLOT_H
#define TITAN_CTL_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct plot {
    const double *x, *y; /* n points, x not decreasing; points with a y that is not finite are left out */
    size_t n;
    const double *marks; /* n more values at the same x, each a cross where it is finite; NULL: none */
    int width, height;   /* cells of the whole drawing; at least 24 x 5, smaller ones are taken as that */
    bool unicode;
    const char *title;  /* line above */
    const char *x_name; /* right of the x axis' ends */
};

/* Lines, each ended by a newline: the title, the curve beside its y axis, the x axis and its ends. Fewer than one point
 * draws the title and says so. */
void plot_draw(const struct plot *p, struct buf *out);
/* Does the terminal's locale take UTF-8? */
bool plot_unicode(void);

#endif
