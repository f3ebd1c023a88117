# The cluster in one thread, tests/sim. `make test` has 2,000 schedules of it (tests/sim/test_simulation.c).

sim_src := $(filter-out tests/sim/test_% tests/sim/main.c,$(wildcard tests/sim/*.c))
lib_sim := $(BUILD)/obj/libsim.a
$(eval $(call library,$(lib_sim),$(call obj,$(sim_src))))
$(filter $(BUILD)/tests/sim/%,$(test_bins)): test_libs := $(lib_sim)
$(filter $(BUILD)/tests/sim/%,$(test_bins)): $(lib_sim)
sim_bin := $(BUILD)/tests/sim/sim
$(sim_bin): $(call obj,tests/sim/main.c tests/support/disk.c) $(lib_sim) $(lib_daemon) $(lib_worker) $(lib_state) $(lib_proto) $(lib_base)
	$(link) $(call obj,tests/sim/main.c tests/support/disk.c) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(libs_state) $(libs_rpc) $(libs_worker)

.PHONY: sim
sim: $(sim_bin) ## the whole cluster under a seeded scheduler (SEED=n TRACE=1 KEEP=..., ROUNDS=n FIRST=n PROCESSES=n)
	@SEED=$(SEED) ROUNDS=$(ROUNDS) FIRST=$(FIRST) PROCESSES=$(PROCESSES) KEEP=$(KEEP) TRACE=$(TRACE) $(sim_bin)

# Deliberate bugs (base/mutant.h) in a build of their own: each must be found within 10,000 schedules.
.PHONY: sim-mutants
sim-mutants: ## are 20 and more deliberate bugs of the protocol found? (ROUNDS=n, ONLY=NAME)
	@$(MAKE) --no-print-directory BUILD=build/mutants CFLAGS='-O2 -g -DTITAN_MUTANTS' build/mutants/tests/sim/sim
	@MUTANTS='$(ONLY)' FIRST=$(FIRST) ROUNDS=$(if $(ROUNDS),$(ROUNDS),10000) build/mutants/tests/sim/sim
