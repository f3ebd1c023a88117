# SPDX-License-Identifier: Apache-2.0
# Faults for real: hosts as network namespaces, real daemons and workers. `make test` has a slice (tests/fault/test_scenarios.py).

fault_tools := $(BUILD)/tests/fault/wire $(BUILD)/tests/fault/shim.so
$(BUILD)/tests/fault/wire: $(BUILD)/obj/tests/fault/wire.o $(lib_base)
	$(link) $^
$(BUILD)/tests/fault/shim.so: $(BUILD)/obj/tests/fault/shim.o
	$(link) -shared $^ -ldl
tests: $(fault_tools)

.PHONY: fault kills soak soak-tls alarms reliability
fault: all $(fp_programs) $(fault_tools) $(BUILD)/tests/unit/state/test_disk_faults ## the scenarios with real processes, as root (ROUNDS=20 ONLY=1,6 SEED=n); results in build/fault
	@BUILD=$(BUILD) $(PYTHON) tests/fault/run_faults.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only '$(ONLY)') $(if $(SEED),--seed $(SEED))
kills: all ## SIGKILL of a whole run at random moments of saving: no checkpoint is lost (ROUNDS=100 SEED=n)
	@BUILD=$(BUILD) $(PYTHON) tests/fault/save_kills.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))
soak: all $(fp_programs) $(fault_tools) ## a failure every 15 s, as root (MINUTES=60 SEED=n); results in build/soak
	@BUILD=$(BUILD) $(PYTHON) tests/fault/soak.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))
soak-tls: all ## training over TLS while every certificate is replaced each minute (MINUTES=10)
	@BUILD=$(BUILD) $(PYTHON) tests/tls/soak.py $(if $(MINUTES),--minutes $(MINUTES))
alarms: all $(fault_tools) $(BUILD)/tests/scale/agents ## where nothing fails: what is taken for lost or hung, as root (MINUTES=5 of each condition); results in build/alarms
	@BUILD=$(BUILD) $(PYTHON) tests/fault/alarms.py $(if $(MINUTES),--minutes $(MINUTES))
record-%: ## run `make sim`, `sim-mutants`, `sim-scale`, `model`, `attack`, `fuzz` or `soak-tls` and keep its result for `make reliability` (record-sim ROUNDS=1000000 PROCESSES=2)
	@BUILD=$(BUILD) $(PYTHON) tests/fault/record.py $* $(MAKE) --no-print-directory $* $(if $(ROUNDS),ROUNDS=$(ROUNDS)) $(if $(PROCESSES),PROCESSES=$(PROCESSES)) $(if $(SEED),SEED=$(SEED)) $(if $(AGENTS),AGENTS=$(AGENTS))
reliability: ## write docs/reliability.md from what `make fault soak alarms sim scale bench` have measured
	@BUILD=$(BUILD) $(PYTHON) tests/fault/reliability.py
