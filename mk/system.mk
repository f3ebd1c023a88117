# SPDX-License-Identifier: Apache-2.0
# make system: the package installed on two machines with systemd, and what happens to it there (docs/reliability.md, "Installed
# system"). As root, with debootstrap and qemu-system-x86 or systemd-container; what is made is kept below build/system. Not part of
# `make test`. Machines are emulated; KIND=containers takes namespaces of this machine instead, its own kernel with them.
.PHONY: system
system: deb ## the installed system on two machines: restarts, upgrade, power cuts (as root; emulated, or in 6 minutes KIND=containers)
	@tests/system/image.sh $(BUILD)/system
	@KIND=$(or $(KIND),emulated) $(PYTHON) tests/system/run.py $(BUILD)/titan_$(deb_version)_$(deb_arch).deb $(BUILD)/system
.PHONY: fresh
fresh: ## README's two commands on a fresh Debian 12, as root and as a user (as root; half an hour; PART="user demo root")
	@BUILD=$(BUILD) tests/system/fresh.sh $(PART)
