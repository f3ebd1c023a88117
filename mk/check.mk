# SPDX-License-Identifier: Apache-2.0
# make check: what has to be clean before a change lands, cheapest first. The tools: `make deps-dev`.
# CUDA sources, and the C++ that stands in for a GPU, are compiled by their own rules (mk/cuda.mk); here only their format is looked at.
check_c   = $(shell git ls-files -co --exclude-standard '*.c')
check_own = $(filter base/% proto/% state/% daemon/% worker/% ctl/%,$(filter-out worker/device/cuda/% worker/comm/nccl/%,$(check_c)))
CLANG_FORMAT ?= clang-format-14
CLANG_TIDY   ?= clang-tidy-14
CPPCHECK     ?= cppcheck
jobs := $(shell nproc)

packages_dev := $(shell sed 's/[[:space:]]*\#.*//; /^$$/d' packages-dev.txt)
.PHONY: deps-dev compdb heads check-heads check-format check-layers tidy check-tidy tidy-files check-cppcheck check-sanitizers check-threads
deps-dev: ## install what `make check` needs on top (packages-dev.txt)
	@deploy/deps.sh $(packages_dev)

# clangd looks for the file in build/ by itself. A command is one line that ends with its source.
compdb: $(gen_c) ## write build/compile_commands.json, for clangd and other tools
	@$(MAKE) -nB --no-print-directory V=1 all tests | awk -v dir='$(CURDIR)' '/ -c -o / { gsub(/["\\]/, "\\\\&"); \
		printf "%s{\"directory\": \"%s\", \"file\": \"%s\", \"command\": \"%s\"}", n++ ? ",\n" : "[\n", dir, $$NF, $$0 } END { print "\n]" }' \
		>$(BUILD)/compile_commands.json
	@echo "$(BUILD)/compile_commands.json: $$(grep -c '"file"' $(BUILD)/compile_commands.json) files"

check_parts := format heads cppcheck tidy sanitizers threads
check: ## format, heads, cppcheck, tidy, sanitizers, threads; PARTS='tidy threads' for some
	@unknown='$(filter-out $(check_parts),$(PARTS))'; [ -z "$$unknown" ] || { echo "make check: no part $$unknown; there are $(check_parts)" >&2; exit 2; }
	@$(MAKE) --no-print-directory deps
	@for tool in $(CLANG_FORMAT) $(CLANG_TIDY) $(CPPCHECK); do command -v $$tool >/dev/null || \
		{ echo "make check: $$tool is missing; run make deps-dev" >&2; exit 1; }; done
	@n=0; for part in $(or $(PARTS),$(check_parts)); do n=$$((n + 1)); begin=$$SECONDS; \
		echo "check $$n of $(words $(or $(PARTS),$(check_parts))): $$part"; \
		$(MAKE) --no-print-directory check-$$part || { echo "check: $$part is not clean; again: make check PARTS=$$part" >&2; exit 1; }; \
		echo "check: $$part is clean, after $$((SECONDS - begin)) s"; done
	@echo "check: clean"

format_files = '*.c' '*.h' '*.cu' '*.cuh' '*.cpp'
format: ## put every C, C++ and CUDA source into the house format
	git ls-files -zco --exclude-standard $(format_files) | xargs -0 $(CLANG_FORMAT) -i
check-format:
	$(call say,FORMAT,"$$(git ls-files -co --exclude-standard $(format_files) | wc -l) files")git ls-files -zco --exclude-standard $(format_files) | xargs -0 $(CLANG_FORMAT) --dry-run -Werror
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
tidy: check-tidy ## clang-tidy alone, and a report on style by folder
tidy_stamps = $(check_own:%.c=$(BUILD)/tidy/%.ok)
check-tidy:
	@$(MAKE) --no-print-directory -j$(jobs) tidy-files
	@$(PYTHON) tests/docs/style.py
tidy-files: $(tidy_stamps)
# A file that was clean is looked at again when it, or a header it reads, has changed: its object is newer then.
$(BUILD)/tidy/%.ok: %.c $(BUILD)/obj/%.o .clang-tidy
	@mkdir -p $(@D); printf '  %-8s%s\n' TIDY "$$(find $(BUILD)/tidy -name '*.ok' | wc -l) of $(words $(check_own)), $<"
	@$(CLANG_TIDY) --quiet $< -- -std=gnu17 -D_GNU_SOURCE -I. -I$(BUILD)/gen -fopenmp -DTITAN_FDS='"/dev/null"' 2>/dev/null
	@touch $@

# Without the scripts: those start the programs and watch the clock, which a sanitizer slows tenfold. Warnings do not
# stop these builds: instrumentation misleads gcc's value ranges.
check-sanitizers:
	@UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$(CURDIR)/mk/lsan.txt:print_suppressions=0 $(MAKE) --no-print-directory test SAN=address,undefined T='unit fuzz sim'
# gRPC and OpenMP are not built for the thread sanitizer and would be reported for what they do not do.
check-threads:
	@LIMIT=2400 $(MAKE) --no-print-directory test SAN=thread T='unit/base unit/state unit/daemon/common unit/worker/checkpoint unit/worker/comm unit/worker/elastic unit/worker/epoch unit/worker/metrics'
