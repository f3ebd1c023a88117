# make system: the package installed on two emulated machines with systemd, and what happens to it there (docs/reliability.md,
# "Installed system"). As root, with debootstrap and qemu-system-x86; the image is kept below build/system. Not part of `make test`.
.PHONY: system
system: deb ## the installed system on two emulated machines: restarts, upgrade, power cuts (as root, about 20 minutes)
	@tests/system/image.sh $(BUILD)/system
	@$(PYTHON) tests/system/run.py $(BUILD)/titan_$(deb_version)_$(deb_arch).deb $(BUILD)/system
