# SPDX-License-Identifier: Apache-2.0
# Coverage-guided fuzzing, tests/fuzz/targets: each file is one LLVMFuzzerTestOneInput. `make test` replays the corpora with a
# plain runner (tests/fuzz/test_corpora.sh), so nothing of clang is needed there. A corpus is an archive (tests/fuzz/archive.sh),
# unpacked into a folder of the build.

fuzz_targets := $(patsubst tests/fuzz/targets/%.c,%,$(wildcard tests/fuzz/targets/*.c))
fuzz_replay := $(fuzz_targets:%=$(BUILD)/tests/fuzz/replay/%)
fuzz_bins := $(fuzz_targets:%=$(BUILD)/tests/fuzz/targets/%)
fuzz_corpora := $(patsubst tests/fuzz/corpus/%.tar.xz,$(BUILD)/fuzz-corpus/%,$(wildcard tests/fuzz/corpus/*.tar.xz))
# Of the CUDA plug-in what needs no CUDA.
fuzz_obj := $(call obj,tests/fuzz/common.c tests/fuzz/file_pool.c tests/fuzz/message.c tests/support/memory_device.c worker/comm/nccl/share.c worker/comm/nccl/peers.c)
fuzz_libs := $(lib_daemon) $(lib_worker) $(lib_ctl) $(lib_state) $(lib_proto) $(lib_base)
fuzz_link = -Wl,--start-group $(fuzz_libs) -Wl,--end-group $(libs_daemon) $(libs_worker)
$(fuzz_replay): $(BUILD)/tests/fuzz/replay/%: $(BUILD)/obj/tests/fuzz/targets/%.o $(call obj,tests/fuzz/replay.c) $(fuzz_obj) $(fuzz_libs)
	$(link) -rdynamic $< $(call obj,tests/fuzz/replay.c) $(fuzz_obj) $(fuzz_link)
$(fuzz_bins): $(BUILD)/tests/fuzz/targets/%: $(BUILD)/obj/tests/fuzz/targets/%.o $(fuzz_obj) $(fuzz_libs)
	$(link) -fsanitize=fuzzer -rdynamic $< $(fuzz_obj) $(fuzz_link)
# What the API's coordinator has around it is the target's own (tests/fuzz/targets/api.c).
$(BUILD)/tests/fuzz/replay/api $(BUILD)/tests/fuzz/targets/api: \
	fuzz_link += $(patsubst %,-Wl$(comma)--wrap=%,clock_mono_ns clock_wall_ms uv_queue_work getpwuid_r)
# The calls that the API over HTTP makes end in the target.
$(BUILD)/tests/fuzz/replay/http $(BUILD)/tests/fuzz/targets/http: \
	fuzz_link += $(patsubst %,-Wl$(comma)--wrap=%,rpc_local_call rpc_local_leave rpc_local_drained rpc_call_identity api_newest_event charts_new charts_ask charts_leave)
# The CPU device's kernels, without its streams.
$(BUILD)/tests/fuzz/replay/codes $(BUILD)/tests/fuzz/targets/codes: fuzz_link := $(call obj,worker/device/cpu/codecs.c) $(fuzz_link)
$(BUILD)/tests/fuzz/replay/codes $(BUILD)/tests/fuzz/targets/codes: $(call obj,worker/device/cpu/codecs.c)
# Logs nothing.
$(BUILD)/tests/fuzz/replay/said $(BUILD)/tests/fuzz/targets/said: fuzz_link += -Wl,--wrap=log_write
$(fuzz_corpora): $(BUILD)/fuzz-corpus/%: tests/fuzz/corpus/%.tar.xz tests/fuzz/archive.sh
	@tests/fuzz/archive.sh unpack $< $@
tests: $(fuzz_replay) $(fuzz_corpora)

# clang's build is one of its own; its objects count what they cover.
fuzz_make = $(MAKE) --no-print-directory BUILD=build/fuzz CC=clang-14 SAN=address,undefined CFLAGS='-O1 -g -fsanitize=fuzzer-no-link'
fuzz_wanted = $(or $(TARGET),$(fuzz_targets))
fuzz_known = @[ -z '$(filter-out $(fuzz_targets),$(TARGET))' ] || { echo "there is no target '$(filter-out $(fuzz_targets),$(TARGET))'; there are: $(fuzz_targets)"; exit 2; }
.PHONY: fuzz fuzz-build fuzz-merge fuzz-add fuzz-programs
fuzz-programs: $(fuzz_wanted:%=$(BUILD)/tests/fuzz/targets/%) $(filter $(fuzz_wanted:%=$(BUILD)/fuzz-corpus/%),$(fuzz_corpora))
fuzz-build:
	$(fuzz_known)
	@command -v clang-14 >/dev/null || { echo "make fuzz needs clang-14 and libclang-rt-14-dev (packages-dev.txt)"; exit 1; }
	+@$(fuzz_make) fuzz-programs
fuzz: fuzz-build ## coverage-guided fuzzing of every parser and handler, clang's sanitizers (MINUTES=30 each, TARGET=x); finds in build/fuzz/found
	@tests/fuzz/fuzz.sh run '$(fuzz_wanted)' $(or $(MINUTES),30)
fuzz-merge: fuzz-build ## keep of what `make fuzz` has learned the little that covers it all, in tests/fuzz/corpus (TARGET=x)
	@tests/fuzz/fuzz.sh merge '$(fuzz_wanted)'
fuzz-add: ## add an input to a target's corpus by hand, or several (TARGET=x FILE=path)
	$(fuzz_known)
	@[ -n '$(TARGET)' ] && [ -n "$(FILE)" ] || { echo "make fuzz-add needs TARGET=x and FILE=path"; exit 2; }
	@tests/fuzz/archive.sh add tests/fuzz/corpus/$(TARGET).tar.xz $(FILE)
