/* machine.h - what this machine has. */
#ifndef TITAN_BASE_MACHINE_H
#define TITAN_BASE_MACHINE_H

#include <stdint.h>

/* GPUs that the driver shows: /dev/nvidia0 and so on. */
uint32_t machine_gpus(void);

#endif
