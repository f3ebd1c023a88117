/* machine.c - see machine.h. */
#include "base/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <string.h>

uint32_t machine_gpus(void)
{
    uint32_t n = 0;
    DIR *dir = opendir("/dev");
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += !strncmp(e->d_name, "nvidia", 6) && isdigit((unsigned char)e->d_name[6]);
    if (dir)
        (void)closedir(dir);
    return n;
}
