# SPDX-License-Identifier: Apache-2.0
# The CUDA plug-in: `make cuda`. Needs a CUDA toolkit (nvcc, cuBLASLt, NCCL) and a C and C++ compiler, nothing else: the
# plug-in's objects are built apart, without the generated protocol code. Loading it needs no driver; using it does.
#   CUDA=/path             the toolkit, if not where nvcc is
#   NCCL=$(CUDA), CUBLAS=$(CUDA), CUDNN=$(CUDA)   where those libraries are, if elsewhere; cuDNN is not linked to, it is
#                          loaded where it is found, and can do without
#   CUDA_ARCH="80 90a 100" compute capabilities to build machine code for
ifndef CUDA
CUDA := $(or $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc 2>/dev/null))),/usr/local/cuda)
endif
NCCL      ?= $(CUDA)
CUBLAS    ?= $(CUDA)
CUDNN     ?= $(CUDA)
CUDA_ARCH ?= 80 90a 100
NVCC      := $(CUDA)/bin/nvcc
plugin_cuda := $(BUILD)/lib/titan/libtitan-cuda.so

cuda_c  := $(wildcard worker/device/cuda/*.c worker/comm/nccl/*.c)
cuda_cu := $(wildcard worker/device/cuda/*.cu)
cuda_o  := $(cuda_c:%.c=$(BUILD)/obj/cuda/%.o) $(cuda_cu:%.cu=$(BUILD)/obj/cuda/%.cu.o)

# Evaluated in the recipes only: no toolkit, no call.
cuda_known = $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code))
cuda_use   = $(foreach a,$(CUDA_ARCH),$(if $(filter $(a:%a=%),$(cuda_known)),$(a)))
cuda_gen   = $(if $(cuda_use),$(foreach a,$(cuda_use),-gencode arch=compute_$(a),code=sm_$(a)),\
	$(error this CUDA toolkit knows none of CUDA_ARCH="$(CUDA_ARCH)", only $(cuda_known)))
# PTX of the oldest, for a GPU newer than the list; a feature variant's (90a) would run nowhere else.
cuda_ptx   = $(if $(filter 80,$(cuda_use)),-gencode arch=compute_80$(comma)code=compute_80)
# The library file itself, whatever its version: python's packages of the toolkit have no plain .so name.
cuda_lib   = $(or $(firstword $(wildcard $(foreach d,lib64 lib,$(2)/$(d)/lib$(1).so $(2)/$(d)/lib$(1).so.*))),-l$(1))
cuda_rpath = $(foreach d,$(sort $(dir $(filter /%,$(call cuda_lib,nccl,$(NCCL)) $(call cuda_lib,cublasLt,$(CUBLAS)) $(call cuda_lib,cudnn,$(CUDNN))))),-Wl,-rpath,$(d:%/=%))
# The system's own folders are looked in anyway, and must stay behind the compiler's; the toolkit may hold an older NCCL.
cuda_inc   := $(foreach d,$(filter-out /usr /usr/local,$(NCCL) $(CUBLAS) $(CUDNN) $(CUDA)),-isystem $(d)/include)
NVCCFLAGS  ?= -O3

.PHONY: cuda cuda-needs
cuda: $(plugin_cuda) ## build the CUDA plug-in (needs a CUDA toolkit; CUDA=/path if nvcc is not in PATH, CUDA_ARCH="80 90a 100")
cuda-needs:
	@test -x $(NVCC) || { echo "make cuda: no CUDA toolkit: $(NVCC) is missing; say where it is: make cuda CUDA=/path" >&2; exit 1; }
	@test -n "$(wildcard $(addsuffix /include/nccl.h,$(NCCL) $(CUDA)))" || { echo "make cuda: nccl.h is not in $(NCCL)/include; say where NCCL is: make cuda NCCL=/path" >&2; exit 1; }
ifneq ($(filter cuda,$(MAKECMDGOALS)),)
$(cuda_o): | cuda-needs
endif

$(BUILD)/obj/cuda/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(TITAN_CFLAGS) $(CFLAGS) $(CPPFLAGS) $(cuda_inc) -c -o $@ $<
# -MD is run by nvcc itself so that the dependencies name the .cu and its headers. C++ takes a function with a struct's name
# for a hidden constructor: -Wshadow=local says nothing of it.
$(BUILD)/obj/cuda/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) -std=c++17 $(NVCCFLAGS) -I. $(cuda_gen) $(cuda_ptx) -MD -MP -MF $(@:.o=.d) $(if $(WERROR)$(CI),-Werror all-warnings) \
		-Xcompiler -fPIC,-Wall,-Wextra,-Wshadow=local$(if $(WERROR)$(CI),$(comma)-Werror)$(if $(SAN),$(comma)-fsanitize=$(subst $(comma),$(comma)-fsanitize=,$(SAN))) $(addprefix -Xcompiler ,$(harden)) $(nvflags-$<) -c -o $@ $<
# Whether the plug-in has kernels for Hopper's tensor cores.
nvflags-worker/device/cuda/attention_hopper.cu = $(if $(filter 90a,$(cuda_use)),-DTITAN_SM90A)
# The host's bits: base/rng.c is built without contraction, too.
nvflags-worker/device/cuda/weights.cu := -fmad=false
cuda_runtime = $(or $(firstword $(wildcard $(CUDA)/lib64/libcudart_static.a $(CUDA)/lib/libcudart_static.a)),$(call cuda_lib,cudart,$(CUDA))) \
	-lstdc++ -ldl -lrt -lpthread -lm
$(plugin_cuda): $(cuda_o) $(lib_base)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(TITAN_LDFLAGS) $(LDFLAGS) -shared -Wl,-z,defs,-z,nodelete -o $@ $^ $(cuda_rpath) \
		$(call cuda_lib,cublasLt,$(CUBLAS)) $(call cuda_lib,nccl,$(NCCL)) $(cuda_runtime)

# The same plug-in on the host, for tests: kernels by an emulator, the driver, the CUDA runtime, cuBLASLt and NCCL by plain
# stand-ins (tests/cuda), all in a libcuda.so.1. Needs the toolkit's headers, no nvcc.
emulated_dir := $(BUILD)/cuda-emulated
emulated_o   := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(basename $(cuda_cu)))
standins_o   := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(basename $(wildcard tests/cuda/*.cpp)))
emulated     := $(emulated_dir)/libtitan-cuda.so
CXX := g++
$(BUILD)/obj/emulated/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) -x c++ -std=c++17 -O2 -g -Wall -Wextra -Wno-unknown-pragmas $(if $(WERROR)$(CI),-Werror) -fPIC -DTITAN_EMULATE -I. $(cuda_inc) -MMD -MP -c -o $@ $<
$(BUILD)/obj/emulated/%.o: %.cpp
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) -std=c++17 -O2 -g -Wall -Wextra $(if $(WERROR)$(CI),-Werror) -fPIC -I. $(cuda_inc) -MMD -MP -c -o $@ $<
# Stands where the driver would: opening libcuda.so.1 succeeds.
$(emulated_dir)/libcuda.so.1: $(standins_o)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CXX) -shared -Wl,-soname,libcuda.so.1,-z,defs -o $@ $^ -ldl -lpthread
$(emulated): $(emulated_o) $(cuda_c:%.c=$(BUILD)/obj/cuda/%.o) $(emulated_dir)/libcuda.so.1 $(lib_base)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CXX) -shared -Wl,-z,defs,-z,nodelete -Wl,--no-as-needed -o $@ $^ '-Wl,-rpath,$$ORIGIN' -ldl -lpthread

# cuDNN: a stand-in that the emulated plug-in loads by TITAN_CUDNN, and a check of the graphs by the real one.
.PHONY: cudnn-programs
cudnn-programs: $(emulated_dir)/fake/libcudnn.so.9 $(emulated_dir)/check_cudnn
$(emulated_dir)/fake/libcudnn.so.9: $(BUILD)/obj/cuda/tests/cuda/fake_cudnn.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -shared -Wl,-soname,libcudnn.so.9 -o $@ $^ -ldl -lm
$(emulated_dir)/check_cudnn: $(addprefix $(BUILD)/obj/cuda/,tests/cuda/check_cudnn.o worker/device/cuda/cudnn_graph.o) $(lib_base)
	@mkdir -p $(@D)
	$(link) $^ -ldl -lpthread -lm

# --- tests/gpu: what a bare GPU machine checks, without cmocka; `make BARE=1 gpu-programs` needs a C compiler only ---
gpu_programs := $(patsubst %,$(BUILD)/gpu/%,check_comm check_ops bench_ops)
gpu_support  := $(patsubst %,$(BUILD)/obj/cuda/%.o,$(basename $(wildcard tests/support/device_*.c)) worker/device/device) $(lib_base)
.PHONY: gpu-programs gpu-probe
gpu-programs: $(gpu_programs) $(BUILD)/gpu/check_model $(BUILD)/gpu/check_directions $(BUILD)/gpu/check_parts $(BUILD)/gpu/check_codecs
# Launches kernels of its own: needs the toolkit. Emulated it calls the stand-ins.
probe_o := $(patsubst %,$(BUILD)/obj/cuda/%.o,tests/gpu/probe worker/device/cuda/modules worker/device/device)
gpu-probe: $(BUILD)/gpu/probe $(BUILD)/gpu/check_hopper
$(BUILD)/gpu/check_hopper: $(BUILD)/obj/cuda/tests/cuda/check_hopper.cu.o $(BUILD)/obj/cuda/worker/device/cuda/modules.o $(lib_base)
	@mkdir -p $(@D)
	$(link) $^ $(cuda_runtime)
$(emulated_dir)/check_hopper: $(BUILD)/obj/emulated/tests/cuda/check_hopper.o $(emulated_dir)/libcuda.so.1
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CXX) -o $@ $^ '-Wl,-rpath,$$ORIGIN' -ldl -lpthread
$(BUILD)/gpu/probe: $(probe_o) $(BUILD)/obj/cuda/tests/gpu/spin.cu.o $(lib_base)
	@mkdir -p $(@D)
	$(link) $^ $(cuda_runtime)
$(emulated_dir)/probe: $(probe_o) $(BUILD)/obj/emulated/tests/gpu/spin.o $(emulated_dir)/libcuda.so.1 $(lib_base)
	@mkdir -p $(@D)
	$(link) $^ '-Wl,-rpath,$$ORIGIN' -lstdc++ -ldl -lpthread -lm
$(BUILD)/obj/cuda/tests/%.o: CPPFLAGS += -Itests -DTITAN_SOURCE_DIR='"$(CURDIR)"' -DTITAN_BUILD_DIR='"$(abspath $(BUILD))"'
$(gpu_programs): $(BUILD)/gpu/%: $(BUILD)/obj/cuda/tests/gpu/%.o $(gpu_support)
	@mkdir -p $(@D)
	$(link) -rdynamic $(filter-out $(lib_base),$^) $(lib_base) -ldl -lpthread -lm
$(BUILD)/gpu/bench_ops: $(lib_worker)
$(BUILD)/obj/cuda/tests/gpu/bench_ops.o: $(BUILD)/obj/cuda/tests/bench/bench_ops.o
	@mkdir -p $(@D) && cp $< $@
# The model, updates of whole matrices, parts of directions and codecs against references, on the device TITAN_TEST_DEVICE names.
$(BUILD)/obj/cuda/tests/golden/%.o: CPPFLAGS += -Itests/gpu/cmocka
$(BUILD)/gpu/check_model: $(BUILD)/obj/cuda/tests/golden/test_model.o $(BUILD)/obj/cuda/tests/support/sets.o $(lib_worker) $(lib_base)
$(BUILD)/gpu/check_directions: $(BUILD)/obj/cuda/tests/golden/test_directions.o $(lib_worker) $(lib_base)
$(BUILD)/gpu/check_parts: $(BUILD)/obj/cuda/tests/golden/test_parts.o $(lib_worker) $(lib_base)
$(BUILD)/gpu/check_codecs: $(BUILD)/obj/cuda/tests/golden/test_codecs.o $(lib_worker) $(lib_base)
$(patsubst %,$(BUILD)/gpu/check_%,model directions parts codecs):
	@mkdir -p $(@D)
	$(link) -rdynamic $^ -ldl -lrt -lpthread -lm

.PHONY: cuda-tests
cuda-tests: tests
	@BUILD=$(BUILD) PYTHON=$(PYTHON) tests/cuda/prepare.sh

# --- tests/nvml: a stand-in for NVML, which the agent loads by TITAN_NVML ---
fake_nvml := $(BUILD)/tests/nvml/libnvidia-ml.so.1
$(fake_nvml): $(BUILD)/obj/tests/nvml/fake_nvml.o
	$(link) -shared -Wl,-soname,libnvidia-ml.so.1 $^
tests: $(fake_nvml)
$(addprefix $(BUILD)/tests/unit/daemon/agent/,test_agent test_gpu_watch test_gpu_silence): | $(fake_nvml)
