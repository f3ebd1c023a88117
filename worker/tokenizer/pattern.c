/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/pattern.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/tokenizer/unicode.h"

#define CLASSES_MAX 32
#define NODES_MAX 512
#define GROUPS_DEEP 16
#define REPEAT_MAX 1000
#define FOREVER UINT32_MAX

#define PAGE 256u
#define PAGES (UNICODE_END / PAGE)

enum node_kind { MATCH, CLASS, GROUP, NOT_AHEAD };

/* A step of a match. A group's alternatives are chains of nodes. Each chain ends in the node after the group. */
struct node {
    enum node_kind kind;
    uint32_t class;          /* bit of the node's class */
    uint32_t min, max;       /* number of repetitions */
    bool possessive;         /* never gives matched characters back */
    int sibling;             /* the next node of the same alternative, as written; -1: last */
    int next;                /* the node to try after a match of this node */
    int alternatives, count; /* of a group: index in `heads` of the first alternative, and number of alternatives */
};

/* A set of code points, as the places where membership changes: the first edge begins a range, the second ends it. */
struct set {
    uint32_t *edges;
    size_t n, cap;
};

struct pattern {
    struct node *nodes;
    int n_nodes, cap_nodes;
    int *heads; /* the first node of each alternative; until nodes are linked, -1 = an empty alternative */
    int n_heads, cap_heads;
    struct set sets[CLASSES_MAX];
    int n_sets;
    uint16_t page_of[PAGES];
    uint32_t (*pages)[PAGE]; /* the classes of each code point, a bit each */
    size_t n_pages, cap_pages;
    uint32_t ascii[128];
    uint32_t begins[128]; /* by ASCII character: a bit per alternative of the whole pattern that may begin with it */
    int root;
};

/* --- sets of code points ------------------------------------------------------------------------------------------ */

static bool set_add(struct set *s, uint32_t from, uint32_t to)
{
    titan_assert(from <= to && to < UNICODE_END);
    return VEC_PUSH(s->edges, s->n, s->cap, from) && VEC_PUSH(s->edges, s->n, s->cap, to + 1);
}

struct span {
    uint32_t from, to;
};

static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Sorts and joins ranges that were added in any order. */
static void set_tidy(struct set *s)
{
    titan_assert(s->n % 2 == 0);
    struct span *spans = (struct span *)s->edges;
    size_t n = 0, total = s->n / 2;
    if (total > 1)
        qsort(spans, total, sizeof(*spans), compare_spans);
    for (size_t i = 0; i < total; i++) {
        if (n > 0 && spans[i].from <= spans[n - 1].to)
            spans[n - 1].to = MAX(spans[n - 1].to, spans[i].to);
        else
            spans[n++] = spans[i];
    }
    s->n = 2 * n;
}

static bool set_invert(struct set *s)
{
    set_tidy(s);
    if (s->n > 0 && s->edges[0] == 0)
        VEC_REMOVE(s->edges, s->n, 0);
    else if (!VEC_INSERT(s->edges, s->n, s->cap, 0, 0))
        return false;
    if (s->edges && s->n > 0 && s->edges[s->n - 1] == UNICODE_END)
        s->n--;
    else if (!VEC_PUSH(s->edges, s->n, s->cap, UNICODE_END))
        return false;
    titan_assert(s->n % 2 == 0);
    return true;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

struct reader {
    struct pattern *p;
    const char *begin, *at;
    int depth;
    bool fold; /* inside (?i: */
    struct titan_error *err;
};

static titan_status refuse(struct reader *r, const char *what)
{
    return titan_fail(r->err, TITAN_EUNSUPPORTED, "pattern '%.160s', byte %zu: %s", r->begin,
                      (size_t)(r->at - r->begin), what);
}

static titan_status no_memory(struct reader *r)
{
    return titan_fail(r->err, TITAN_ENOMEM, "no memory for a pattern");
}

static titan_status add_node(struct reader *r, struct node node, int *ret)
{
    struct pattern *p = r->p;
    titan_assert(p->n_nodes <= NODES_MAX);
    if (p->n_nodes == NODES_MAX)
        return refuse(r, "it is too long");
    node.sibling = -1;
    *ret = p->n_nodes;
    return VEC_PUSH(p->nodes, p->n_nodes, p->cap_nodes, node) ? TITAN_OK : no_memory(r);
}

/* Makes the set a class of the pattern, or takes the class that has the same members. */
static titan_status add_class(struct reader *r, struct set *set, uint32_t *ret_bit)
{
    struct pattern *p = r->p;
    set_tidy(set);
    for (int i = 0; i < p->n_sets; i++)
        if (p->sets[i].n == set->n &&
            (set->n == 0 || memcmp(p->sets[i].edges, set->edges, set->n * sizeof(*set->edges)) == 0)) {
            *ret_bit = UINT32_C(1) << i;
            return TITAN_OK;
        }
    if (p->n_sets == CLASSES_MAX)
        return refuse(r, "it has more than 32 different classes of characters");
    *ret_bit = UINT32_C(1) << p->n_sets;
    titan_assert(p->n_sets < CLASSES_MAX);
    p->sets[p->n_sets++] = *set;
    *set = (struct set){0};
    return TITAN_OK;
}

static void set_free(struct set *s)
{
    free(s->edges);
}

static bool is_letter(uint32_t code)
{
    return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
}

/* Adds a range of characters, and inside (?i: also the characters that fold to them. */
static titan_status add_range(struct reader *r, struct set *set, uint32_t from, uint32_t to)
{
    titan_assert(from <= to);
    if (!set_add(set, from, to))
        return no_memory(r);
    if (!r->fold)
        return TITAN_OK;
    if (to > 0x7f)
        return refuse(r, "(?i: is known for ASCII only");
    for (uint32_t c = from; c <= to; c++) {
        if (is_letter(c) && !set_add(set, c ^ 0x20, c ^ 0x20))
            return no_memory(r);
        if ((c | 0x20) == 's' && !set_add(set, 0x17f, 0x17f))
            return no_memory(r);
        if ((c | 0x20) == 'k' && !set_add(set, 0x212a, 0x212a))
            return no_memory(r);
    }
    return TITAN_OK;
}

/* Reads the property after \p or \P: {L}, {Lu}, or L. */
static titan_status read_property(struct reader *r, uint32_t *ret_mask)
{
    static const char *const names[] = {
#define X(name) #name,
        CATEGORIES(X)
#undef X
    };
    char name[4] = {0};
    size_t n = 0;
    if (*r->at == '{') {
        const char *end = strchr(++r->at, '}');
        if (!end || end == r->at || end - r->at > 2)
            return refuse(r, "only general categories are known as properties");
        while (r->at < end)
            name[n++] = *r->at++;
        r->at++;
    } else if (is_letter((unsigned char)*r->at)) {
        name[n++] = *r->at++;
    }
    *ret_mask = 0;
    for (size_t i = 0; n > 0 && i < ARRAY_SIZE(names); i++)
        if (names[i][0] == name[0] &&
            (n == 1 || (is_letter((unsigned char)name[1]) && names[i][1] == (name[1] & ~0x20))))
            *ret_mask |= UINT32_C(1) << i;
    return *ret_mask ? TITAN_OK : refuse(r, "only general categories are known as properties");
}

/* Reads the escape after a \: a set, or one character in *ret_code (and an empty set). */
static titan_status read_escape(struct reader *r, struct set *set, uint32_t *ret_code)
{
    static const char names[] = "rntvf", values[] = "\r\n\t\v\f";
    /* The property White_Space. */
    static const struct span spaces[] = {{9, 13},          {32, 32},         {0x85, 0x85},     {0xa0, 0xa0},
                                         {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                         {0x205f, 0x205f}, {0x3000, 0x3000}};
    const char c = *r->at;
    *ret_code = UNICODE_END;
    if (c == 's' || c == 'S' || c == 'd' || c == 'D' || c == 'p' || c == 'P') {
        const bool space = c == 's' || c == 'S';
        uint32_t mask = UINT32_C(1) << CATEGORY_ND;
        _cleanup_(set_free) struct set part = {0};
        size_t n;
        const struct category_range *of = unicode_categories(&n);
        bool added = true;
        r->at++;
        if (c == 'p' || c == 'P')
            TRY(read_property(r, &mask));
        for (size_t i = 0; space && i < ARRAY_SIZE(spaces); i++)
            added = added && set_add(&part, spaces[i].from, spaces[i].to);
        for (size_t i = 0; !space && i < n; i++)
            if (mask >> of[i].category & 1)
                added = added && set_add(&part, of[i].first, (i + 1 < n ? of[i + 1].first : UNICODE_END) - 1);
        if (!added)
            return no_memory(r);
        set_tidy(&part);
        added = c < 'A' || c > 'Z' || set_invert(&part);
        for (size_t i = 0; i + 1 < part.n; i += 2)
            added = added && set_add(set, part.edges[i], part.edges[i + 1] - 1);
        return added ? TITAN_OK : no_memory(r);
    }
    const char *name = c ? strchr(names, c) : NULL;
    if (!name && (c <= 0x20 || is_letter((unsigned char)c) || (c >= '0' && c <= '9') || c == 0x7f))
        return refuse(r, "this escape is not known");
    *ret_code = name ? (unsigned char)values[name - names] : (unsigned char)c;
    r->at++;
    return TITAN_OK;
}

static uint32_t next_code(struct reader *r)
{
    size_t len;
    const uint32_t code = utf8_code((const unsigned char *)r->at, &len);
    r->at += len;
    return code;
}

/* Reads a member inside [ ]. *ret_code is its character, or UNICODE_END if a set was added. */
static titan_status read_member(struct reader *r, struct set *set, uint32_t *ret_code)
{
    if (*r->at == '\\') {
        r->at++;
        return read_escape(r, set, ret_code);
    }
    if (*r->at == '[' || (r->at[0] == '&' && r->at[1] == '&'))
        return refuse(r, "sets of sets are not known");
    *ret_code = next_code(r);
    return TITAN_OK;
}

/* Reads one character or set. */
static titan_status read_class(struct reader *r, uint32_t *ret_bit)
{
    _cleanup_(set_free) struct set set = {0};
    uint32_t code;
    if (*r->at == '[') {
        r->at++;
        const bool inverted = *r->at == '^';
        r->at += inverted;
        for (bool first = true; first || *r->at != ']'; first = false) {
            uint32_t from, to;
            if (!*r->at || *r->at == ']')
                return refuse(r, *r->at ? "an empty set" : "a set without its ]");
            TRY(read_member(r, &set, &from));
            if (from == UNICODE_END)
                continue;
            to = from;
            if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
                r->at++;
                TRY(read_member(r, &set, &to));
                if (to == UNICODE_END || to < from)
                    return refuse(r, "a range without an end, or that runs backwards");
            }
            TRY(add_range(r, &set, from, to));
        }
        r->at++;
        if (inverted && !set_invert(&set))
            return no_memory(r);
        return add_class(r, &set, ret_bit);
    }
    if (*r->at == '\\') {
        r->at++;
        TRY(read_escape(r, &set, &code));
    } else {
        if (strchr("*+?{}^$.)]", *r->at))
            return refuse(r, "this sign is not known here");
        code = next_code(r);
    }
    if (code != UNICODE_END)
        TRY(add_range(r, &set, code, code));
    return add_class(r, &set, ret_bit);
}

static titan_status read_number(struct reader *r, uint32_t *ret)
{
    if (*r->at < '0' || *r->at > '9')
        return refuse(r, "a number is missing in { }");
    for (*ret = 0; *r->at >= '0' && *r->at <= '9'; r->at++)
        if ((*ret = *ret * 10 + (uint32_t)(*r->at - '0')) > REPEAT_MAX)
            return refuse(r, "at most 1000 repetitions are counted");
    return TITAN_OK;
}

/* Reads a repetition: ? * + {m,n}. The first three may have a + after them. */
static titan_status read_repeat(struct reader *r, uint32_t *min, uint32_t *max, bool *possessive)
{
    const char c = *r->at;
    *min = *max = 1;
    *possessive = false;
    if (!c || !strchr("?*+{", c))
        return TITAN_OK;
    r->at++;
    *min = c == '+';
    *max = c == '?' ? 1 : FOREVER;
    if (c == '{') {
        TRY(read_number(r, min));
        *max = *min;
        if (*r->at == ',') {
            r->at++;
            *max = FOREVER;
            if (*r->at != '}')
                TRY(read_number(r, max));
        }
        if (*r->at != '}' || *max < *min || *max == 0)
            return refuse(r, "{ } are not as they should be");
        r->at++;
    }
    *possessive = c != '{' && *r->at == '+'; /* after {m,n} engines disagree on the meaning of a + */
    r->at += *possessive;
    return *r->at && strchr("?*+{", *r->at) ? refuse(r, "repetitions of repetitions are not known") : TITAN_OK;
}

static titan_status read_alternatives(struct reader *r, int *ret_group);

static titan_status read_group(struct reader *r, int *ret)
{
    titan_assert(r->depth >= 0 && r->depth <= GROUPS_DEEP);
    const bool fold = r->fold;
    if (r->depth == GROUPS_DEEP)
        return refuse(r, "groups are nested too deep");
    if (strncmp(r->at, "?!", 2) == 0) {
        struct node ahead = {.kind = NOT_AHEAD};
        r->at += 2;
        TRY(read_class(r, &ahead.class));
        if (*r->at != ')')
            return refuse(r, "(?! ) is known for one character");
        r->at++;
        return add_node(r, ahead, ret);
    }
    if (strncmp(r->at, "?i:", 3) == 0) {
        r->fold = true;
        r->at += 3;
    } else if (strncmp(r->at, "?:", 2) == 0) {
        r->at += 2;
    } else if (*r->at == '?') {
        return refuse(r, "this kind of group is not known");
    }
    r->depth++;
    TRY(read_alternatives(r, ret));
    r->depth--;
    r->fold = fold;
    if (*r->at != ')')
        return refuse(r, "a group without its )");
    r->at++;
    if (*r->at == '?') { /* or nothing */
        r->at++;
        if (*r->at == '+')
            return refuse(r, "possessive groups are not known");
        struct node *group = &r->p->nodes[*ret]; /* the alternatives that were read last are the group's */
        if (!VEC_PUSH(r->p->heads, r->p->n_heads, r->p->cap_heads, -1))
            return no_memory(r);
        group->count++;
    }
    return *r->at && strchr("?*+{", *r->at) ? refuse(r, "groups cannot be repeated") : TITAN_OK;
}

/* Reads alternatives up to the end, or up to the ) of the group. */
static titan_status read_alternatives(struct reader *r, int *ret_group)
{
    int heads[CLASSES_MAX], n = 0, last = -1;
    heads[0] = -1;
    for (; *r->at && *r->at != ')';) {
        if (*r->at == '|') {
            if (++n == CLASSES_MAX)
                return refuse(r, "it has more than 32 alternatives");
            heads[n] = last = -1;
            r->at++;
            continue;
        }
        int item;
        if (*r->at == '(') {
            r->at++;
            TRY(read_group(r, &item));
        } else {
            struct node node = {.kind = CLASS};
            TRY(read_class(r, &node.class));
            TRY(read_repeat(r, &node.min, &node.max, &node.possessive));
            TRY(add_node(r, node, &item));
        }
        if (last < 0)
            heads[n] = item;
        else
            r->p->nodes[last].sibling = item;
        last = item;
    }
    struct node group = {.kind = GROUP, .alternatives = r->p->n_heads, .count = n + 1};
    for (int i = 0; i <= n; i++)
        if (!VEC_PUSH(r->p->heads, r->p->n_heads, r->p->cap_heads, heads[i]))
            return no_memory(r);
    return add_node(r, group, ret_group);
}

static titan_status read_literal(struct reader *r, int *ret_group)
{
    int head = -1, last = -1;
    while (*r->at) {
        struct node node = {.kind = CLASS, .min = 1, .max = 1};
        _cleanup_(set_free) struct set set = {0};
        const uint32_t code = next_code(r);
        int item;
        TRY(add_range(r, &set, code, code));
        TRY(add_class(r, &set, &node.class));
        TRY(add_node(r, node, &item));
        if (last < 0)
            head = item;
        else
            r->p->nodes[last].sibling = item;
        last = item;
    }
    const struct node group = {.kind = GROUP, .alternatives = r->p->n_heads, .count = 1};
    if (!VEC_PUSH(r->p->heads, r->p->n_heads, r->p->cap_heads, head))
        return no_memory(r);
    return add_node(r, group, ret_group);
}

/* --- making it ready ---------------------------------------------------------------------------------------------- */

/* Sets `next` of every node of the chain. The last node's `next` is `follow`. Groups recurse, at most GROUPS_DEEP
 * deep. */
static void link_chain(struct pattern *p, int at, int follow)
{
    titan_assert(follow >= 0 && follow < p->n_nodes);
    for (; at >= 0; at = p->nodes[at].sibling) {
        struct node *node = &p->nodes[at];
        node->next = node->sibling >= 0 ? node->sibling : follow;
        for (int i = 0; node->kind == GROUP && i < node->count; i++) {
            int *head = &p->heads[node->alternatives + i];
            link_chain(p, *head, node->next);
            *head = *head < 0 ? node->next : *head;
        }
    }
}

/* May a match from node `at` on begin with a character of these classes? With classes 0: may the match be empty? The
 * answer is an upper bound, because assertions count as true. seen: nodes already visited. */
static bool may_begin(const struct pattern *p, int at, uint32_t classes, bool *seen)
{
    titan_assert(at >= 0 && at < p->n_nodes);
    const struct node *node = &p->nodes[at];
    if (seen[at])
        return false;
    seen[at] = true;
    switch (node->kind) {
    case MATCH:
        return true;
    case CLASS:
        return node->class & classes || (node->min == 0 && may_begin(p, node->next, classes, seen));
    case GROUP:
        for (int i = 0; i < node->count; i++)
            if (may_begin(p, p->heads[node->alternatives + i], classes, seen))
                return true;
        return false;
    default:
        return may_begin(p, node->next, classes, seen);
    }
}

/* Makes the table of the classes of every code point. Pages in which all code points have one equal mask are shared. */
static bool make_pages(struct pattern *p)
{
    titan_assert(p->n_sets <= CLASSES_MAX && p->n_pages == 0);
    size_t cursor[CLASSES_MAX] = {0};
    _cleanup_free_ bool *uniform = calloc(PAGES, sizeof(*uniform));
    if (!uniform)
        return false;
    for (uint32_t page = 0; page < PAGES; page++) {
        const uint32_t begin = page * PAGE, end = begin + PAGE;
        uint32_t mask = 0;
        bool same = true;
        for (int k = 0; k < p->n_sets; k++) { /* cursor[k]: number of edges at or before `begin` */
            const struct set *s = &p->sets[k];
            while (cursor[k] < s->n && s->edges[cursor[k]] <= begin)
                cursor[k]++;
            mask |= (uint32_t)(cursor[k] & 1) << k;
            same = same && (cursor[k] == s->n || s->edges[cursor[k]] >= end);
        }
        int found = -1;
        for (size_t i = 0; same && i < p->n_pages && found < 0; i++)
            found = uniform[i] && p->pages[i][0] == mask ? (int)i : -1;
        if (found < 0) {
            if (!VEC_RESERVE(p->pages, p->cap_pages, p->n_pages + 1))
                return false;
            found = (int)p->n_pages++;
            uniform[found] = same;
            for (uint32_t i = 0; i < PAGE; i++) {
                uint32_t m = 0;
                for (int k = 0; k < p->n_sets; k++) {
                    const struct set *s = &p->sets[k];
                    while (cursor[k] < s->n && s->edges[cursor[k]] <= begin + i)
                        cursor[k]++;
                    m |= (uint32_t)(cursor[k] & 1) << k;
                }
                p->pages[found][i] = m;
            }
        }
        p->page_of[page] = (uint16_t)found;
    }
    memcpy(p->ascii, p->pages[p->page_of[0]], sizeof(p->ascii));
    return true;
}

static titan_status finish(struct reader *r, int group)
{
    struct pattern *p = r->p;
    titan_assert(group >= 0 && group < p->n_nodes);
    int match;
    TRY(add_node(r, (struct node){.kind = MATCH}, &match));
    link_chain(p, group, match);
    p->root = group;
    titan_assert(p->nodes[group].kind == GROUP);
    if (may_begin(p, group, 0, (bool[NODES_MAX]){0}))
        return refuse(r, "it matches an empty text");
    if (!make_pages(p))
        return no_memory(r);

    /* A node need not give characters back in two cases: the rest of the pattern is empty, or the rest cannot begin
     * with a character that the node matched. */
    uint32_t meets[CLASSES_MAX] = {0}; /* the classes that share a character with this one */
    for (size_t i = 0; i < p->n_pages; i++)
        for (uint32_t c = 0, last = 0; c < PAGE; c++) {
            const uint32_t mask = p->pages[i][c];
            for (int k = 0; mask != last && k < p->n_sets; k++)
                meets[k] |= mask >> k & 1 ? mask : 0;
            last = mask;
        }
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].kind == CLASS) {
            const struct node *next = &p->nodes[p->nodes[i].next];
            const uint32_t with = meets[__builtin_ctz(p->nodes[i].class)];
            p->nodes[i].possessive |=
                next->kind == MATCH || (next->kind == CLASS && next->min > 0 && !(next->class & with));
        }

    const struct node *root = &p->nodes[group];
    for (int c = 0; c < 128; c++)
        for (int i = 0; i < root->count; i++)
            p->begins[c] |= (uint32_t)may_begin(p, p->heads[root->alternatives + i], p->ascii[c], (bool[NODES_MAX]){0})
                            << i;
    return TITAN_OK;
}

titan_status pattern_open(const char *text, bool literal, struct pattern **ret, struct titan_error *err)
{
    struct pattern *p = calloc(1, sizeof(*p));
    struct reader r = {.p = p, .begin = text, .at = text, .err = err};
    int group;
    if (!p)
        return no_memory(&r);
    titan_status status = literal ? read_literal(&r, &group) : read_alternatives(&r, &group);
    if (status == TITAN_OK && *r.at)
        status = refuse(&r, "a ) without its group");
    if (status == TITAN_OK)
        status = finish(&r, group);
    if (status != TITAN_OK) {
        pattern_close(p);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}

void pattern_close(struct pattern *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_sets; i++)
        set_free(&p->sets[i]);
    free(p->nodes);
    free(p->heads);
    free(p->pages);
    free(p);
}

/* --- matching ----------------------------------------------------------------------------------------------------- */

/* Is the character at `at` of the class? *ret_end: end of the character. */
static inline bool is_of(const struct pattern *p, uint32_t class, const unsigned char *at,
                         const unsigned char **ret_end)
{
    if (*at < 0x80) {
        *ret_end = at + 1;
        return p->ascii[*at] & class;
    }
    size_t len;
    const uint32_t code = utf8_code(at, &len);
    *ret_end = at + len;
    return p->pages[p->page_of[code / PAGE]][code % PAGE] & class;
}

struct match {
    const struct pattern *p;
    const unsigned char *end;
    size_t steps; /* number of tries left */
};

/* Returns the end of the match from node i at `at` on, or NULL without a match. It recurses from node to node, at most
 * NODES_MAX deep. */
static const unsigned char *run(struct match *m, int i, const unsigned char *at)
{
    for (;;) {
        const struct node *node = &m->p->nodes[i];
        const unsigned char *after, *first;
        uint32_t n = 0;
        if (m->steps-- == 0) {
            m->steps = 0;
            return NULL;
        }
        switch (node->kind) {
        case MATCH:
            return at;
        case NOT_AHEAD:
            if (at < m->end && is_of(m->p, node->class, at, &after))
                return NULL;
            break;
        case GROUP:
            for (int k = 0; k + 1 < node->count; k++) {
                const unsigned char *found = run(m, m->p->heads[node->alternatives + k], at);
                if (found)
                    return found;
            }
            i = m->p->heads[node->alternatives + node->count - 1];
            continue;
        case CLASS:
            for (first = at; n < node->max && at < m->end && is_of(m->p, node->class, at, &after); n++)
                at = after;
            if (n < node->min)
                return NULL;
            if (node->possessive || n == node->min)
                break;
            for (;; n--) {
                const unsigned char *found = run(m, node->next, at);
                if (found)
                    return found;
                if (n == node->min || m->steps == 0)
                    return NULL;
                do
                    at--;
                while (at > first && (*at & 0xc0) == 0x80);
            }
        }
        i = node->next;
    }
}

size_t pattern_match(const struct pattern *p, const unsigned char *at, const unsigned char *end)
{
    struct match m = {.p = p, .end = end, .steps = ((size_t)(end - at) + 64) * (size_t)p->n_nodes};
    const struct node *root = &p->nodes[p->root];
    titan_assert(at < end && root->count >= 1);
    uint32_t left = *at < 0x80 ? p->begins[*at] : UINT32_MAX >> (32 - root->count);
    for (; left; left &= left - 1) {
        const unsigned char *found = run(&m, p->heads[root->alternatives + __builtin_ctz(left)], at);
        if (found)
            return (size_t)(found - at);
    }
    return m.steps ? PATTERN_NONE : PATTERN_TOO_LONG;
}
