# SPDX-License-Identifier: Apache-2.0
# make check: what has to be clean before a change lands, cheapest first. The tools: `make deps-dev`.
# CUDA sources, and the C++ that stands in for a GPU, are compiled by their own rules (mk/cuda.mk); here only their format is looked at.
check_c   = $(shell git ls-files '*.c')
check_own = $(filter base/% proto/% state/% daemon/% worker/% ctl/%,$(filter-out worker/device/cuda/% worker/comm/nccl/%,$(check_c)))
CLANG_FORMAT ?= clang-format-14
CLANG_TIDY   ?= clang-tidy-14
CPPCHECK     ?= cppcheck
jobs := $(shell nproc)

packages_dev := $(shell sed 's/[[:space:]]*\#.*//; /^$$/d' packages-dev.txt)
.PHONY: deps-dev heads check-heads check-format check-layers check-tidy check-cppcheck check-sanitizers check-threads
deps-dev: ## install what `make check` needs on top (packages-dev.txt)
	@deploy/deps.sh $(packages_dev)

check: ## format, dividers, licence lines, clang-tidy, cppcheck, tests under address, undefined and thread sanitizers
	@$(MAKE) --no-print-directory deps
	@for tool in $(CLANG_FORMAT) $(CLANG_TIDY) $(CPPCHECK); do command -v $$tool >/dev/null || \
		{ echo "make check: $$tool is missing; run make deps-dev" >&2; exit 1; }; done
	@$(MAKE) --no-print-directory check-format
	@$(MAKE) --no-print-directory check-heads
	@$(MAKE) --no-print-directory check-cppcheck
	@$(MAKE) --no-print-directory check-tidy
	@$(MAKE) --no-print-directory check-sanitizers
	@$(MAKE) --no-print-directory check-threads
	@echo "check: clean"

format_files = '*.c' '*.h' '*.cu' '*.cuh' '*.cpp'
format: ## put every C, C++ and CUDA source into the house format
	git ls-files -z $(format_files) | xargs -0 $(CLANG_FORMAT) -i
check-format:
	$(call say,FORMAT,"$$(git ls-files $(format_files) | wc -l) files")git ls-files -z $(format_files) | xargs -0 $(CLANG_FORMAT) --dry-run -Werror
check-layers: ## no folder includes what the table of tests/docs/layers.py does not allow it
	@$(PYTHON) tests/docs/layers.py
heads: ## mend section dividers and write the licence's line where it is missing
	@$(PYTHON) tests/docs/dividers.py
	@$(PYTHON) tests/docs/spdx.py
check-heads:
	$(call say,HEADS,"section dividers$(comma) licence lines")$(PYTHON) tests/docs/dividers.py --check && $(PYTHON) tests/docs/spdx.py --check
check-cppcheck:
	$(call say,CPPCHK,"$(words $(check_own)) files")$(CPPCHECK) -q -j$(jobs) --enable=warning,performance,portability --std=c11 \
		--library=posix --library=gnu --inline-suppr --suppressions-list=mk/cppcheck.txt --error-exitcode=1 \
		--template='{file}:{line}: {severity}: {message} [{id}]' -D_GNU_SOURCE -I. $(check_own)
tidy: check-tidy ## clang-tidy alone
check-tidy: $(gen_c)
	$(call say,TIDY,"$(words $(check_own)) files")printf '%s\n' $(check_own) | xargs -P$(jobs) -n 5 sh -c '$(CLANG_TIDY) --quiet "$$@" -- \
		-std=gnu17 -D_GNU_SOURCE -I. -I$(BUILD)/gen -fopenmp -DTITAN_FDS="\"/dev/null\"" 2>/dev/null' tidy
# Without the scripts: those start the programs and watch the clock, which a sanitizer slows tenfold. Warnings do not
# stop these builds: instrumentation misleads gcc's value ranges.
check-sanitizers:
	@UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$(CURDIR)/mk/lsan.txt:print_suppressions=0 $(MAKE) --no-print-directory test SAN=address,undefined T='unit fuzz sim'
# gRPC and OpenMP are not built for the thread sanitizer and would be reported for what they do not do.
check-threads:
	@LIMIT=2400 $(MAKE) --no-print-directory test SAN=thread T='unit/base unit/state unit/worker/comm unit/worker/elastic unit/worker/metrics'
