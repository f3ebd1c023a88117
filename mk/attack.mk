# SPDX-License-Identifier: Apache-2.0
# Attacks on real daemons with a run beside, tests/attack. `make test` has a slice (tests/attack/test_scenes.py, test_attack.py).

.PHONY: attack
attack: all ## attacks by name, then mutated messages of clients, agents, workers and datagrams (ROUNDS=100000 SEED=n ONLY=name WAYS=agent)
	@BUILD=$(BUILD) $(PYTHON) tests/attack/run_attack.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)') $(if $(WAYS),--ways '$(WAYS)')
