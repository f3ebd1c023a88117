# SPDX-License-Identifier: Apache-2.0
# make deb: a Debian package of what is built, made with dpkg-deb; nothing but binutils and dpkg is needed.
deb_version := $(shell sed -n 's/.*TITAN_VERSION "\(.*\)"/\1/p' base/version.h)
deb_arch     = $(shell dpkg --print-architecture)

deb: all ## build the Debian package build/titan_VERSION_ARCH.deb
	$(call say,DEB,$(BUILD)/titan_$(deb_version)_$(deb_arch).deb)BUILD='$(BUILD)' deploy/deb/build.sh $(deb_version) $(deb_arch)
