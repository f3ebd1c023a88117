/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c.h - CRC-32C (Castagnoli, RFC 3720 B.4): SSE4.2 where the machine has it, a table elsewhere. */
#ifndef TITAN_BASE_CRC32C_H
#define TITAN_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Extends crc (0 to begin) over data. */
uint32_t crc32c(uint32_t crc, const void *data, size_t len);
/* The table alone; tests check the fast path against it. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t len);

#endif
