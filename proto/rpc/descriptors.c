/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.c - the descriptor set, included by the assembler: no generated source, no copy. */
#include "proto/rpc/descriptors.h"

__asm__(".pushsection .rodata\n"
        ".balign 8\n"
        ".global titan_descriptors\n"
        ".type titan_descriptors, @object\n"
        "titan_descriptors:\n"
        ".incbin \"" TITAN_FDS "\"\n"
        ".Ltitan_descriptors_end:\n"
        ".size titan_descriptors, . - titan_descriptors\n"
        ".balign 8\n"
        ".global titan_descriptors_bytes\n"
        ".type titan_descriptors_bytes, @object\n"
        "titan_descriptors_bytes:\n"
        ".quad .Ltitan_descriptors_end - titan_descriptors\n"
        ".size titan_descriptors_bytes, 8\n"
        ".popsection\n");
