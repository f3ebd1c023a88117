/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/base64.h"

#include <stdint.h>

#include "base/error.h"

static int digit64(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

ptrdiff_t base64_read(const char *text, size_t n, unsigned char *out)
{
    size_t len = 0;
    if (n % 4)
        return -1;
    for (size_t i = 0; i < n; i += 4) {
        const int pad = i + 4 < n ? 0 : (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=');
        uint32_t word = 0;
        for (int k = 0; k < 4; k++) {
            const int digit = k >= 4 - pad ? 0 : digit64((unsigned char)text[i + (size_t)k]);
            if (digit < 0)
                return -1;
            word = word << 6 | (uint32_t)digit;
        }
        for (int k = 0; k < 3 - pad; k++)
            out[len++] = (unsigned char)(word >> (16 - 8 * k));
    }
    titan_assert(len <= n / 4 * 3);
    return (ptrdiff_t)len;
}
