/* version.h - one version for everything. */
#ifndef TITAN_BASE_VERSION_H
#define TITAN_BASE_VERSION_H

#define TITAN_VERSION "0.1.0"

#endif
