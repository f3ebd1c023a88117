/* SPDX-License-Identifier: Apache-2.0 */
/* plot.h - curves in the terminal: braille dots (2x4 per cell) in UTF-8 locales, asterisks elsewhere; single values
 * appear as crosses (+). */
#ifndef TITAN_CTL_PLOT_H
#define TITAN_CTL_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

enum { PLOT_CURVES = 26 };

struct plot_curve {
    const double *x, *y; /* n points, x not decreasing; a non-finite y leaves a gap */
    size_t n;
    const double *marks; /* n more values at the same x, each drawn as a cross if finite; NULL: none */
    const char *legend;  /* line below the plot; NULL: none */
};

struct plot {
    const struct plot_curve *curves;
    size_t n;          /* at most PLOT_CURVES */
    int width, height; /* cells of the whole drawing; raised to at least 24 x 5 */
    bool unicode;
    bool color;         /* several curves differ by colour; false: by letters instead of dots */
    const char *title;  /* line above */
    const char *x_name; /* name of the x axis, right of its ends */
};

/* Writes lines, each ended by a newline: the title, the curves beside their y axis, the x axis and its ends, the
 * legend. Without points it draws the title and a note. */
void plot_draw(const struct plot *p, struct buf *out);
/* Writes the values as a line of at most width blocks or characters, each block for an equal share of the values. A
 * non-finite value is a space. */
void plot_spark(const double *values, size_t n, int width, bool unicode, struct buf *out);
/* Does the terminal's locale use UTF-8? */
bool plot_unicode(void);

#endif
