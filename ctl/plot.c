/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/plot.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"

enum { LABEL_MIN = 9, LABEL_TEXT = 16, WIDTH_MIN = 24, HEIGHT_MIN = 5 };

/* A drawing of dots. A cell has 2 x 4 dots in braille, one in ASCII. */
struct canvas {
    int cells_x, cells_y, dots_x, dots_y, per_x, per_y;
    int label;       /* cells left of the plot: for the values, a blank, the axis */
    uint8_t *cells;  /* braille pattern, or 1 for a mark */
    uint8_t *owners; /* the last curve with a dot in the cell */
    bool *crosses;   /* a cross is drawn over the cell */
    uint8_t curve;   /* the curve being drawn */
};

struct range {
    double min, max;
};

static struct range range_of(const double *values, const double *check, size_t n)
{
    struct range r = {INFINITY, -INFINITY};
    for (size_t i = 0; i < n; i++) {
        if (isfinite(check[i])) {
            r.min = fmin(r.min, values[i]);
            r.max = fmax(r.max, values[i]);
        }
    }
    return r;
}

static struct range join(struct range a, struct range b)
{
    return (struct range){fmin(a.min, b.min), fmax(a.max, b.max)};
}

static double scale(double value, struct range r, int dots)
{
    titan_assert(dots > 0);
    return r.max > r.min ? (value - r.min) / (r.max - r.min) * (dots - 1) : (dots - 1) / 2.0;
}

static void curve(struct canvas *c, const struct plot_curve *p, struct range rx, struct range ry)
{
    bool have = false;
    double last_x = 0, last_y = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (!isfinite(p->y[i])) {
            have = false;
            continue;
        }
        double x = scale(p->x[i], rx, c->dots_x), y = c->dots_y - 1 - scale(p->y[i], ry, c->dots_y);
        const double x0 = have ? last_x : x, y0 = have ? last_y : y;

        /* Draws a straight line of dots, ends included. Bits of a braille cell by column and row: dots 1-2-3-7 and
         * 4-5-6-8 (Unicode chapter 21.1). */
        static const uint8_t bits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
        int steps = (int)fmax(fabs(x - x0), fabs(y - y0)) + 1;
        for (int k = 0; k <= steps; k++) {
            double t = (double)k / steps;
            int at_x = (int)lround(x0 + t * (x - x0)), at_y = (int)lround(y0 + t * (y - y0));
            if (at_x < 0 || at_x >= c->dots_x || at_y < 0 || at_y >= c->dots_y)
                continue;
            uint8_t *cell = &c->cells[(at_y / c->per_y) * c->cells_x + at_x / c->per_x];
            *cell |= c->per_x == 2 ? bits[at_x % 2][at_y % 4] : 1;
            c->owners[cell - c->cells] = c->curve;
        }

        last_x = x;
        last_y = y;
        have = true;
    }
}

/* Draws the marks as crosses, without lines between them. */
static void crosses(struct canvas *c, const struct plot_curve *p, struct range rx, struct range ry)
{
    for (size_t i = 0; p->marks && i < p->n; i++) {
        if (!isfinite(p->marks[i]))
            continue;
        const int x = (int)lround(scale(p->x[i], rx, c->dots_x)) / c->per_x;
        const int y = (c->dots_y - 1 - (int)lround(scale(p->marks[i], ry, c->dots_y))) / c->per_y;
        c->crosses[y * c->cells_x + x] = true;
        c->owners[y * c->cells_x + x] = c->curve;
    }
}

/* --- several curves ----------------------------------------------------------------------------------------------- */

static const char *paint_of(const struct plot *p, int curve)
{
    static const char *const paints[] = {"\033[34m", "\033[33m", "\033[32m", "\033[35m", "\033[36m", "\033[31m"};
    return p->color && p->n > 1 ? paints[(size_t)curve % ARRAY_SIZE(paints)] : "";
}

static void put_legend(const struct plot *p, struct buf *out)
{
    titan_assert(p->n <= PLOT_CURVES);
    for (size_t i = 0; i < p->n; i++) {
        if (!p->curves[i].legend)
            continue;
        const char *paint = paint_of(p, (int)i);
        if (*paint)
            buf_printf(out, "%s%s%s ", paint, p->unicode ? "━━" : "--", "\033[0m");
        else if (p->n > 1)
            buf_printf(out, "%c ", (char)('a' + i));
        buf_printf(out, "%s\n", p->curves[i].legend);
    }
}

/* Writes the value beside a row; only both ends and the middle of the axis have a value. */
static int label_of(const struct canvas *c, struct range ry, int y, char text[LABEL_TEXT])
{
    titan_assert(c->cells_y > 1);
    *text = '\0';
    if (y != 0 && y != c->cells_y - 1 && y != (c->cells_y - 1) / 2)
        return 0;
    return snprintf(text, LABEL_TEXT, "%.4g", ry.max - (ry.max - ry.min) * y / (c->cells_y - 1));
}

static void put_rows(const struct plot *p, const struct canvas *c, struct range ry, struct buf *out)
{
    titan_assert(c->cells_x > 0 && c->cells_y > 1);
    char text[LABEL_TEXT];
    for (int y = 0; y < c->cells_y; y++) {
        if (label_of(c, ry, y, text) > 0)
            buf_printf(out, "%*s %s", c->label - 2, text, p->unicode ? "┤" : "+");
        else
            buf_printf(out, "%*s%s", c->label - 1, "", p->unicode ? "│" : "|");
        int used = c->cells_x;
        while (used > 0 && !c->cells[y * c->cells_x + used - 1] && !c->crosses[y * c->cells_x + used - 1])
            used--;
        for (int x = 0; x < used; x++) {
            const int at = y * c->cells_x + x;
            const uint8_t cell = c->cells[at];
            const char *paint = cell || c->crosses[at] ? paint_of(p, c->owners[at]) : "";
            char braille[4];
            buf_puts(out, paint);
            if (c->crosses[at])
                buf_puts(out, "+");
            else if (cell && p->n > 1 && !*paint)
                buf_printf(out, "%c", (char)('a' + c->owners[at]));
            else if (c->per_x == 1 || !cell)
                buf_puts(out, cell ? "*" : " ");
            else
                (void)!buf_append(out, braille, utf8_encode(0x2800u + cell, braille));
            buf_puts(out, *paint ? "\033[0m" : "");
        }
        buf_puts(out, "\n");
    }
}

void plot_draw(const struct plot *p, struct buf *out)
{
    titan_assert(p->n <= PLOT_CURVES && (p->n == 0 || p->curves));
    struct range rx = {INFINITY, -INFINITY}, ry = rx;
    for (size_t i = 0; i < p->n; i++) {
        const struct plot_curve *a = &p->curves[i];
        rx = join(rx, range_of(a->x, a->y, a->n));
        ry = join(ry, range_of(a->y, a->y, a->n));
        if (a->marks) {
            rx = join(rx, range_of(a->x, a->marks, a->n));
            ry = join(ry, range_of(a->marks, a->marks, a->n));
        }
    }
    if (p->title)
        buf_printf(out, "%s\n", p->title);
    if (!(rx.min <= rx.max)) {
        buf_puts(out, "(no points yet)\n");
        put_legend(p, out);
        return;
    }
    int width = MIN(MAX(p->width, WIDTH_MIN), 1000), height = MIN(MAX(p->height, HEIGHT_MIN), 1000);
    struct canvas c = {
        .cells_y = height - 3, .per_x = p->unicode ? 2 : 1, .per_y = p->unicode ? 4 : 1, .label = LABEL_MIN};
    char text[LABEL_TEXT];
    for (int y = 0; y < c.cells_y; y++)
        c.label = MAX(c.label, label_of(&c, ry, y, text) + 2);
    c.cells_x = width - c.label;
    const size_t cells = (size_t)c.cells_x * (size_t)c.cells_y;
    c.dots_x = c.cells_x * c.per_x;
    c.dots_y = c.cells_y * c.per_y;
    c.cells = calloc(cells, 1);
    c.owners = calloc(cells, 1);
    c.crosses = calloc(cells, sizeof(*c.crosses));
    if (c.cells && c.owners && c.crosses) {
        for (size_t i = 0; i < p->n; i++) {
            c.curve = (uint8_t)i;
            curve(&c, &p->curves[i], rx, ry);
            crosses(&c, &p->curves[i], rx, ry);
        }
        put_rows(p, &c, ry, out);

        char from[32], to[64];
        buf_printf(out, "%*s%s", c.label - 1, "", p->unicode ? "└" : "+");
        for (int x = 0; x < c.cells_x; x++)
            buf_puts(out, p->unicode ? "─" : "-");
        (void)snprintf(from, sizeof(from), "%.10g", rx.min);
        (void)snprintf(to, sizeof(to), "%s%s%.10g", p->x_name ? p->x_name : "", p->x_name ? " " : "", rx.max);
        int gap = c.cells_x - (int)strlen(from) - (int)strlen(to);
        buf_printf(out, "\n%*s%s%*s%s\n", c.label, "", from, MAX(gap, 1), "", to);
        put_legend(p, out);
    }
    free(c.cells);
    free(c.owners);
    free(c.crosses);
}

void plot_spark(const double *values, size_t n, int width, bool unicode, struct buf *out)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const marks[] = {"_", ".", "-", "=", "^"};
    titan_assert(n == 0 || values);
    const struct range r = range_of(values, values, n);
    for (int x = 0; x < width && n > 0; x++) {
        const size_t from = (size_t)x * n / (size_t)width, to = ((size_t)x + 1) * n / (size_t)width;
        double sum = 0, count = 0;
        for (size_t i = from; i < MAX(to, from + 1); i++)
            if (isfinite(values[i])) {
                sum += values[i];
                count++;
            }
        if (count > 0)
            buf_puts(out, unicode ? blocks[lround(scale(sum / count, r, ARRAY_SIZE(blocks)))]
                                  : marks[lround(scale(sum / count, r, ARRAY_SIZE(marks)))]);
        else
            buf_puts(out, " ");
    }
}

bool plot_unicode(void)
{
    (void)setlocale(LC_CTYPE, "");
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}
