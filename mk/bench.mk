# SPDX-License-Identifier: Apache-2.0
# Figures, as ratios in one run and against the machine's own limits. Never part of `make test`.

bench_bins := $(patsubst %.c,$(BUILD)/%,$(filter-out tests/bench/operands.c,$(wildcard tests/bench/*.c)))
$(bench_bins): $(BUILD)/%: $(BUILD)/obj/%.o $(call obj,$(test_support)) $(lib_daemon) $(lib_worker) $(lib_ctl) $(lib_state) $(lib_proto) $(lib_base)
	$(link) -rdynamic $< $(call obj,$(test_support)) -Wl,--start-group $(lib_daemon) $(lib_worker) $(lib_ctl) $(lib_state) $(lib_proto) $(lib_base) -Wl,--end-group $(libs_state) $(libs_rpc) $(libs_worker)

bench: all $(fp_programs) $(bench_bins) $(BUILD)/tests/fault/wire ## measure, 25 minutes; says how far it is, a table at the end, figures in build/bench/summary.json (PART=elastic for one)
	@BUILD=$(BUILD) $(PYTHON) tests/bench/bench.py $(PART)

.PHONY: accuracy
accuracy: $(BUILD)/bin/titan-worker ## predict steps and memory of 20 layouts from costs measured here, then run them, 10 minutes on an idle machine (ARGS=--memory-only in any)
	@BUILD=$(BUILD) $(PYTHON) tests/bench/accuracy.py $(ARGS)

$(BUILD)/tests/bench/operands.so: $(BUILD)/obj/tests/bench/operands.o
	$(link) -shared $^

.PHONY: turns
turns: all $(fp_programs) $(bench_bins) $(BUILD)/tests/bench/operands.so $(BUILD)/tests/fault/wire $(BUILD)/tests/fault/shim.so ## this tree against another that is built, by turns: submits, SIGKILL to the next step, faults, kernels (OLD=path PAIRS=5 PART=system, elastic or kernels)
	@BUILD=$(BUILD) $(PYTHON) tests/bench/turns.py $(OLD) $(or $(PAIRS),5) $(PART)

PEERS_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/titan-peers
.PHONY: bench-peers
bench-peers: $(BUILD)/bin/titan-worker ## train what PyTorch trains, by turns, on an idle machine, hours (PART=step, ranks, matrix; page writes what was measured into docs/benchmarks.md; PEERS_VENV=path)
	@BUILD=$(BUILD) $(PYTHON) tests/bench/peers.py --venv "$(PEERS_VENV)" $(ARGS) $(PART)
