/* SPDX-License-Identifier: Apache-2.0 */
/* completion.h - what a shell offers for the word that is being typed. */
#ifndef TITAN_CTL_COMPLETION_H
#define TITAN_CTL_COMPLETION_H

#include "ctl/command.h"

/* `titanctl __complete WORD...`: candidates for the last word, one a line; ":files" alone leaves it to the shell. The
 * words in front of it are those of the line, without the program's name. */
void completion_print(int n, char **words);
/* The shell's part. */
void completion_bash(struct buf *out);
void completion_zsh(struct buf *out);
void completion_fish(struct buf *out);

#endif
