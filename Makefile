# SPDX-License-Identifier: Apache-2.0
# Titan. `make help` lists the targets; docs/operations.md tells how to install and run what they build.
#
# Sources are found by folder: a new .c file, or folder of them, needs no line here. Everything built goes below $(BUILD).
# What is not the build itself (installation, checks, faults, benchmarks, CUDA, ...) is in mk/, a file a topic.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash

PREFIX ?= /usr/local
DESTDIR ?=
CC := gcc
PYTHON ?= /usr/bin/python3

# Variants: each has its own folder, so switching costs nothing.
comma := ,
variant := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),$(if $(DEBUG),debug,release))$(if $(BARE),-bare)$(if $(filter 0,$(HARDEN)),-unhardened)
BUILD ?= $(if $(filter release,$(variant)),build,build/$(variant))

# Every build guards stacks, bounds calls of libc, marks jump targets (x86) and makes relocations read-only before main. HARDEN=0 builds without,
# apart: `make bench PART=hardening` measures the cost.
ifneq ($(HARDEN),0)
harden  := -fstack-protector-strong -fstack-clash-protection $(if $(filter x86_64,$(shell uname -m)),-fcf-protection)
# Level 3 where compiler and libc have it. Without -O it is only a warning; sanitizers watch the calls that it replaces.
fortify_level := $(shell $(CC) -O -Werror -D_FORTIFY_SOURCE=3 -include features.h -E -x c /dev/null >/dev/null 2>&1 && echo 3 || echo 2)
fortify = $(if $(SAN)$(findstring _FORTIFY_SOURCE,$(CFLAGS) $(CPPFLAGS)),,$(if $(filter-out -O0,$(filter -O%,$(CFLAGS) $(kernel_cflags))),\
	-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$(fortify_level)))
relro   := -Wl,-z,relro,-z,now
endif
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef
CFLAGS ?= $(if $(DEBUG)$(SAN),-O1 -g,-O2 -g)
TITAN_CFLAGS = -std=gnu17 $(WARN) $(if $(WERROR)$(CI),-Werror) $(if $(DEBUG)$(SAN),-DTITAN_DEBUG) \
	$(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined) \
	$(if $(BARE),-DTITAN_BARE) -D_GNU_SOURCE -fPIC $(harden) $(fortify) -I. -I$(BUILD)/gen -MMD -MP
TITAN_LDFLAGS := $(if $(SAN),-fsanitize=$(SAN)) $(relro) -Wl,--as-needed
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-8s%s\n' $(1) $(2);)

# --- sources ---------------------------------------------------------------------------------------------------------
protos      := $(wildcard proto/titan/*/*.proto)
gen_protos  := $(protos:%=$(BUILD)/gen/%)
gen_c       := $(protos:proto/%.proto=$(BUILD)/gen/%.pb-c.c) $(BUILD)/gen/titan/ranges.c
sources      = $(sort $(shell find $(1) -name '*.c'))
plugins     := worker/device/cpu worker/device/cuda worker/comm/nccl
src_base    := $(call sources,base)
src_rpc     := $(call sources,proto)
src_state   := $(call sources,state)
# Several coordinators need libraft (packages.txt); a machine without it builds everything else.
raft        := $(shell pkg-config --exists raft && echo -lraft)
src_ha      := $(if $(raft),$(call sources,daemon/ha))
src_daemon  := $(filter-out daemon/main.c daemon/spawn/spawnd.c daemon/ha/%,$(call sources,daemon))
src_worker  := $(filter-out worker/main.c $(plugins:%=%/%),$(call sources,worker))
# A machine with nothing but a compiler and a CUDA toolkit (BARE=1) has no protobuf-c: the worker then runs without an agent.
src_worker  := $(if $(BARE),$(filter-out worker/elastic/agent_connection.c worker/elastic/member.c,$(src_worker)),$(src_worker))
src_ctl     := $(filter-out ctl/main.c,$(call sources,ctl))
src_cpu     := $(call sources,worker/device/cpu)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
lib_base   := $(BUILD)/obj/libbase.a
lib_proto  := $(BUILD)/obj/libproto.a
lib_state  := $(BUILD)/obj/libstate.a
lib_daemon := $(BUILD)/obj/libdaemon.a
lib_ha     := $(BUILD)/obj/libha.a
lib_worker := $(BUILD)/obj/libworker.a
lib_ctl    := $(BUILD)/obj/libctl.a
plugin_cpu := $(BUILD)/lib/titan/libtitan-cpu.so
plugin_ha  := $(if $(raft),$(BUILD)/lib/titan/libtitan-ha.so)
programs   := $(BUILD)/bin/titand $(BUILD)/bin/titan-spawnd $(BUILD)/bin/titan-worker $(BUILD)/bin/titanctl

.PHONY: all help deps demo test test-slow check bench clean install deb cuda
all: $(programs) $(plugin_cpu) $(plugin_ha) ## build the programs and the plug-ins for the CPU and for several coordinators

help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  V=1 shows commands, DEBUG=1 and SAN=address,undefined build apart, WERROR=1 stops at warnings."

# --- packages --------------------------------------------------------------------------------------------------------
packages := $(shell sed 's/[[:space:]]*\#.*//; /^$$/d' packages.txt)
deps: ## install the Debian packages listed in packages.txt (as root; otherwise says what to run)
	@deploy/deps.sh $(packages)

# --- generated protocol code -----------------------------------------------------------------------------------------
# Clients, reflection and C get the definitions without the options of proto/titan/options.proto: these need google's descriptor.proto.
$(BUILD)/gen/proto/%.proto: proto/%.proto
	@mkdir -p $(@D)
	@sed '/^import "titan.options.proto";$$/,+1d; s/ \[([^]]*\];/;/' $< >$@
$(BUILD)/gen/%.pb-c.c: $(BUILD)/gen/proto/%.proto | $(gen_protos)
	$(call say,PROTO,$<)protoc-c --proto_path=$(BUILD)/gen/proto --c_out=$(BUILD)/gen $<
$(BUILD)/gen/%.pb-c.h: $(BUILD)/gen/%.pb-c.c ;
# Kept: they are what a debugger and a reader want to see.
.SECONDARY: $(gen_c) $(gen_protos)
$(BUILD)/gen/titan.fds: $(gen_protos)
	$(call say,PROTO,$@)protoc --proto_path=$(BUILD)/gen/proto --include_imports --descriptor_set_out=$@ $^
$(BUILD)/gen/titan/ranges.c: proto/ranges.py proto/titan/options.proto $(protos)
	@mkdir -p $(@D)
	$(call say,PROTO,$@)$(PYTHON) $< $(@D)
$(BUILD)/gen/titan/ranges.h: $(BUILD)/gen/titan/ranges.c ;
$(BUILD)/obj/gen/titan/ranges.o: | $(gen_c)

# Written when the commit is another one than last time; two that run side by side, as tests do, each have a file of their own.
commit := $(if $(wildcard .git),$(shell git -c safe.directory='*' rev-parse --short=12 HEAD 2>/dev/null))
$(BUILD)/gen/version.c: FORCE
	@mkdir -p $(@D)
	@printf '#include "base/version.h"\nconst char titan_version[] = TITAN_VERSION "%s";\n' '$(if $(commit), ($(commit)))' >$@.$$$$ && \
		{ cmp -s $@.$$$$ $@ && rm $@.$$$$ || mv $@.$$$$ $@; }
FORCE:
obj_version := $(BUILD)/obj/gen/version.o

# --- objects and libraries -------------------------------------------------------------------------------------------
$(BUILD)/obj/%.o: %.c | $(if $(BARE),,$(gen_c))
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(TITAN_CFLAGS) $(CFLAGS) $(kernel_cflags) $(CPPFLAGS) $(cflags-$<) -c -o $@ $<
$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(TITAN_CFLAGS) -Wno-unused-parameter $(CFLAGS) -c -o $@ $<
# The descriptor set is embedded for server reflection.
$(BUILD)/obj/proto/rpc/services.o: $(BUILD)/gen/titan.fds
cflags-proto/rpc/services.c := -DTITAN_FDS='"$(BUILD)/gen/titan.fds"'
# What the page of `titanctl report` is drawn with.
$(BUILD)/obj/ctl/report_page.o: ctl/report.css ctl/report.js $(wildcard daemon/page/chart.*)
# The page that titand shows.
$(BUILD)/obj/daemon/pages.o: $(wildcard daemon/page/*)
# Kernels: the hot loops are vectorised per ISA by target clones; no unsafe maths, results must be the same everywhere.
# gcc prefers 256-bit vectors where it has 512; here there is no scalar code between that would be slowed down. CFLAGS of a user come before.
# Loops begin at cache lines: short ones were up to 5 % slower or faster with each change of other code.
vector_width := $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)
$(BUILD)/obj/worker/device/cpu/%.o: kernel_cflags := $(if $(DEBUG)$(SAN),,-O3 -falign-loops=64) -fopenmp -ffp-contract=fast -fno-math-errno -fno-trapping-math $(vector_width)
$(BUILD)/obj/base/moment_codes.o: kernel_cflags := $(if $(DEBUG)$(SAN),,-O3) -fno-math-errno -fno-trapping-math

define library
$(1): $(2)
	@rm -f $$@
	$$(call say,AR,$$@)$(AR) rcs $$@ $$^
endef
AR := ar
$(eval $(call library,$(lib_base),$(call obj,$(src_base))))
$(eval $(call library,$(lib_proto),$(call obj,$(src_rpc)) $(gen_c:$(BUILD)/gen/%.c=$(BUILD)/obj/gen/%.o)))
$(eval $(call library,$(lib_state),$(call obj,$(src_state))))
$(eval $(call library,$(lib_daemon),$(call obj,$(src_daemon))))
$(eval $(call library,$(lib_ha),$(call obj,$(src_ha))))
$(eval $(call library,$(lib_worker),$(call obj,$(src_worker))))
$(eval $(call library,$(lib_ctl),$(call obj,$(src_ctl))))

libs_rpc    := -lgrpc -lgpr -lprotobuf-c -luv -lssl -lcrypto
libs_state  := -lsqlite3 -lcrypto
libs_daemon := $(libs_state) $(libs_rpc) -lmicrohttpd -lpthread -lm
libs_worker := $(if $(BARE),,-lprotobuf-c -lz -lzstd) -ldl -lrt -lpthread -lm
libs_ctl    := $(libs_state) $(libs_rpc) -lpthread -lm

link = @mkdir -p $(@D); $(if $(V),,printf '  %-8s%s\n' LINK $@;) $(CC) $(TITAN_LDFLAGS) $(LDFLAGS) -o $@
$(BUILD)/bin/titand: $(call obj,daemon/main.c) $(obj_version) $(lib_daemon) $(lib_state) $(lib_proto) $(lib_base)
	$(link) -rdynamic $^ $(libs_daemon)
# libc alone: what runs as root is small, and starts in milliseconds.
$(BUILD)/bin/titan-spawnd: $(call obj,daemon/spawn/spawnd.c) $(obj_version) $(lib_daemon) $(lib_base)
	$(link) $^
$(BUILD)/bin/titan-worker: $(call obj,worker/main.c) $(obj_version) $(lib_worker) $(if $(BARE),,$(lib_proto)) $(lib_base)
	$(link) -rdynamic $^ $(libs_worker)
$(BUILD)/bin/titanctl: $(call obj,ctl/main.c) $(obj_version) $(lib_ctl) $(lib_daemon) $(lib_state) $(lib_proto) $(lib_base)
	$(link) $^ $(libs_ctl)
# The same with failpoints, for tests only (base/failpoint.h). `all` does not build them, and no target installs them.
fp_programs := $(BUILD)/fp/bin/titand $(BUILD)/fp/bin/titan-worker
$(BUILD)/fp/bin/titand: $(call obj,base/failpoint.c daemon/main.c) $(obj_version) $(lib_daemon) $(lib_state) $(lib_proto) $(lib_base)
	@mkdir -p $(@D) && ln -sfn ../lib $(BUILD)/fp/lib
	$(link) -rdynamic $^ $(libs_daemon)
$(BUILD)/fp/bin/titan-worker: $(call obj,base/failpoint.c worker/main.c) $(obj_version) $(lib_worker) $(if $(BARE),,$(lib_proto)) $(lib_base)
	@mkdir -p $(@D) && ln -sfn ../lib $(BUILD)/fp/lib
	$(link) -rdynamic $^ $(libs_worker)
$(plugin_cpu): $(call obj,$(src_cpu)) $(lib_base)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(TITAN_LDFLAGS) $(LDFLAGS) -shared -o $@ $(call obj,$(src_cpu)) $(lib_base) -ldnnl -fopenmp -lpthread -lm

# Several coordinators. Of what titand has too, titand's own is used: it exports its symbols.
$(plugin_ha): $(call obj,$(src_ha)) $(lib_daemon) $(lib_state) $(lib_proto) $(lib_base)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(TITAN_LDFLAGS) $(LDFLAGS) -shared -o $@ $^ $(raft) $(libs_daemon)

# --- tests -----------------------------------------------------------------------------------------------------------
# tests/unit mirrors the tree: every test_*.c is one program linked against everything. Scripts (test_*.sh, test_*.py)
# print TAP.
test_c       := $(sort $(filter-out $(if $(raft),,tests/unit/daemon/ha/%),$(shell find tests -name 'test_*.c')))
test_support := $(wildcard tests/support/*.c)
test_bins    := $(test_c:%.c=$(BUILD)/%)
$(BUILD)/obj/tests/%.o: CPPFLAGS += -Itests -DTITAN_SOURCE_DIR='"$(CURDIR)"' -DTITAN_BUILD_DIR='"$(abspath $(BUILD))"'
$(test_bins): $(BUILD)/%: $(BUILD)/obj/%.o $(call obj,$(test_support)) $(lib_daemon) $(lib_worker) $(lib_ctl) $(lib_state) $(lib_proto) $(lib_base)
	$(link) -rdynamic $< $(call obj,$(test_support)) -Wl,--start-group $(test_libs) $(lib_daemon) $(lib_worker) $(lib_ctl) $(lib_state) $(lib_proto) $(lib_base) -Wl,--end-group \
		-lcmocka $(libs_daemon) $(libs_worker)
$(filter $(BUILD)/tests/unit/worker/% $(BUILD)/tests/golden/%,$(test_bins)): | $(plugin_cpu) # they load it
plugin_tests := $(BUILD)/tests/unit/worker/device/test_cores $(BUILD)/tests/unit/worker/device/test_matmul_packed $(BUILD)/tests/unit/worker/device/test_gemm_i8
$(plugin_tests): $(call obj,$(src_cpu))
$(plugin_tests): test_libs := $(call obj,$(src_cpu)) -ldnnl -fopenmp
ha_tests := $(filter $(BUILD)/tests/unit/daemon/ha/%,$(test_bins))
$(ha_tests): $(lib_ha)
$(ha_tests): test_libs := $(lib_ha) $(raft)
.PHONY: tests
tests: all $(fp_programs) $(test_bins) ## build the tests without running them
# What make passes on says which (tests/run.py): T=unit/base, CHANGED=1, LOAD=4, REPEAT=10, JOBS, LIMIT.
run_tests = @BUILD=$(BUILD) PYTHON=$(PYTHON) T='$(T)' CHANGED='$(CHANGED)' LOAD='$(LOAD)' REPEAT='$(REPEAT)' JOBS='$(JOBS)' LIMIT='$(LIMIT)'
test: ## packages, build, tests; closes with 'N passed, N failed' (T=unit/base for some, CHANGED=1 for what a change touches)
	@$(MAKE) --no-print-directory deps
	$(run_tests) TITAN_TEST_SET=fast $(PYTHON) tests/run.py
test-slow: ## the tests that take more than 20 s or want a quiet machine
	@$(MAKE) --no-print-directory deps
	$(run_tests) TITAN_TEST_SET=slow $(PYTHON) tests/run.py

.PHONY: model
model: ## check the membership protocol's model with spin, also at random for larger clusters (SECONDS_EACH=60)
	@tests/model/run.sh all

clean: ## remove everything built
	rm -rf build

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
-include mk/*.mk
