# SPDX-License-Identifier: Apache-2.0
SYSCONFDIR ?= $(if $(filter /usr,$(PREFIX)),/etc,$(PREFIX)/etc)

install: all ## install into DESTDIR and PREFIX (/usr/local): programs, plug-ins, units, man pages, run files
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))BUILD='$(BUILD)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' deploy/install.sh
