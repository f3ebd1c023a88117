/* SPDX-License-Identifier: Apache-2.0 */
#include "base/labels.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define KEY_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

static size_t key_bytes(const char *label)
{
    return strcspn(label, "=");
}

static int by_key(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const size_t nx = key_bytes(x), ny = key_bytes(y);
    const int order = memcmp(x, y, MIN(nx, ny));
    return order ? order : (nx > ny) - (nx < ny);
}

titan_status labels_join(char *const *labels, size_t n, const char *what, struct buf *out, struct titan_error *err)
{
    const char *sorted[LABELS_MAX];
    if (n > LABELS_MAX)
        return titan_fail(err, TITAN_EINVAL, "%s: %zu of them; at most %d are possible", what, n, LABELS_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *label = sorted[i] = labels[i];
        const size_t key = strspn(label, KEY_CHARACTERS "._/-");
        if (key == 0 || label[key] != '=' || strchr("._/-", label[0]))
            return titan_fail(err, TITAN_EINVAL,
                              "%s '%.80s': KEY=VALUE is possible, KEY of letters, digits, '.', '_', '/' and '-'", what,
                              label);
        const char *value = label + key + 1;
        const size_t length = strlen(value);
        if (key > LABEL_KEY_MAX || length > LABEL_VALUE_MAX)
            return titan_fail(err, TITAN_EINVAL, "%s '%.80s': at most %d bytes for the key and %d for the value", what,
                              label, LABEL_KEY_MAX, LABEL_VALUE_MAX);
        if (utf8_check(value, length) < length || text_unfit(value, length) < length)
            return titan_fail(err, TITAN_EINVAL,
                              "%s '%.*s': the value has a character that cannot be seen, or no UTF-8", what, (int)key,
                              label);
    }
    qsort(sorted, n, sizeof(sorted[0]), by_key);
    for (size_t i = 1; i < n; i++)
        if (by_key(&sorted[i - 1], &sorted[i]) == 0)
            return titan_fail(err, TITAN_EINVAL, "%s: %.*s is given twice", what, (int)key_bytes(sorted[i]), sorted[i]);
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s\n", sorted[i]);
    return buf_failed(out) ? titan_fail(err, TITAN_ENOMEM, "out of memory") : TITAN_OK;
}

bool labels_have(const char *labels, const char *wanted)
{
    const size_t n = strlen(wanted);
    const bool any_value = !strchr(wanted, '=');
    titan_assert(labels);
    for (const char *at = labels; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, wanted, n) == 0 && at[n] == (any_value ? '=' : '\n'))
            return true;
    }
    return false;
}
