/* SPDX-License-Identifier: Apache-2.0 */
/* plot.h - curves in the terminal: braille dots (2x4 to a cell) where the locale is UTF-8, asterisks elsewhere; and
 * single values beside them as crosses (+). */
#ifndef TITAN_CTL_PLOT_H
#define TITAN_CTL_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

enum { PLOT_CURVES = 26 };

struct plot_curve {
    const double *x, *y; /* n points, x not decreasing; where y is not finite there is a gap */
    size_t n;
    const double *marks; /* n more values at the same x, each a cross where it is finite; NULL: none */
    const char *legend;  /* a line below the picture; NULL: none */
};

struct plot {
    const struct plot_curve *curves;
    size_t n;          /* at most PLOT_CURVES */
    int width, height; /* cells of the whole drawing; at least 24 x 5, smaller ones are taken as that */
    bool unicode;
    bool color;         /* several curves are told apart by colours; else by letters in place of dots */
    const char *title;  /* line above */
    const char *x_name; /* right of the x axis' ends */
};

/* Lines, each ended by a newline: the title, the curves beside their y axis, the x axis and its ends, the legend. Fewer
 * than one point draws the title and says so. */
void plot_draw(const struct plot *p, struct buf *out);
/* The values as a line of so many blocks or characters, one each for as many values; not finite: a space. */
void plot_spark(const double *values, size_t n, int width, bool unicode, struct buf *out);
/* Does the terminal's locale take UTF-8? */
bool plot_unicode(void);

#endif
