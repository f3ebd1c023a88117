# SPDX-License-Identifier: Apache-2.0
# The cluster in one thread, tests/sim. `make test` has 400 schedules of it, `make test-slow` 2,000 (tests/sim/test_simulation.c).

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

# The same lines before and after a change: it changed nothing that coordinator, agents and workers do.
.PHONY: sim-trace
sim-trace: $(sim_bin) ## a line for each schedule with hashes of what happened (SEEDS=1-2000; OLD=file: compare with the lines in it)
	@SEEDS=$(or $(SEEDS),1-2000) $(sim_bin) $(if $(OLD),> $(BUILD)/tests/sim/traces && tests/sim/traces.sh $(OLD) $(BUILD)/tests/sim/traces)

# Thousands of nodes, in a build of its own: tables for as many, epochs of as many members, and what they all keep kept once.
sim_scale_bin := $(BUILD)/tests/sim/scale/sim-scale
sim_scale_obj := $(call obj,$(wildcard tests/sim/scale/*.c) tests/support/disk.c)
sim_scale_wrap := agent_message_copy agent_action_copy titan__internal__form_epoch__unpack \
	titan__internal__form_epoch__free_unpacked titan__internal__agent_job_record__free_unpacked \
	titan__internal__coordinator_message__unpack titan__internal__agent_to_worker__unpack \
	titan__internal__form_epoch__get_packed_size titan__internal__form_epoch__pack packed
$(sim_scale_bin): $(sim_scale_obj) $(lib_sim) $(lib_daemon) $(lib_worker) $(lib_state) $(lib_proto) $(lib_base)
	$(link) $(sim_scale_wrap:%=-Wl,--wrap=%) $(sim_scale_obj) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(libs_state) $(libs_rpc) $(libs_worker)

.PHONY: sim-scale
sim-scale: ## the same with thousands of nodes and one job on all of them (AGENTS=1000)
	@$(MAKE) --no-print-directory BUILD=build/sim-scale CFLAGS='-O2 -g -DSIM_SCALE=10240 -DJOB_WORKERS_MAX=10240 -DCOMM_WORLD_MAX=10240' \
		build/sim-scale/tests/sim/scale/sim-scale
	@AGENTS=$(AGENTS) SEED=$(SEED) TRACE=$(TRACE) build/sim-scale/tests/sim/scale/sim-scale

# Deliberate bugs (base/mutant.h) in a build of their own: each must be found within 12,000 schedules.
.PHONY: sim-mutants
sim-mutants: ## are 20 and more deliberate bugs of the protocol found? (ROUNDS=n, ONLY=NAME)
	@$(MAKE) --no-print-directory BUILD=build/sim-mutants CFLAGS='-O2 -g -DTITAN_MUTANTS' build/sim-mutants/tests/sim/sim
	@MUTANTS='$(ONLY)' FIRST=$(FIRST) ROUNDS=$(if $(ROUNDS),$(ROUNDS),12000) build/sim-mutants/tests/sim/sim

# Three coordinators with libraft's core, tests/unit/daemon/ha/test_member_simulation.c. `make test` has a slice of it.
sim_ha_bin := $(BUILD)/tests/unit/daemon/ha/test_member_simulation
.PHONY: sim-ha sim-ha-mutants
sim-ha: $(sim_ha_bin) ## three coordinators under a seeded scheduler (SEED=n TRACE=1, ROUNDS=n FIRST=n)
	@SEED=$(SEED) TRACE=$(TRACE) FIRST=$(FIRST) SCHEDULES=$(or $(ROUNDS),10000) $(sim_ha_bin)
sim-ha-mutants: $(sim_ha_bin) ## are seven deliberate bugs of the coordinators found within 10,000 schedules? (ROUNDS=n)
	@MUTANT=all FIRST=$(FIRST) SCHEDULES=$(or $(ROUNDS),10000) $(sim_ha_bin)
