/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hex.h"

void hex_write(const unsigned char *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

bool hex_read(const char *text, size_t n, unsigned char *out)
{
    for (size_t i = 0; i < 2 * n; i++) {
        const int c = (unsigned char)text[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return true;
}
