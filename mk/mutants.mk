# SPDX-License-Identifier: Apache-2.0
# Which changes of an operator, a bound or a constant does no test notice? tests/mutants; never part of `make test`.

.PHONY: mutants
mutants: ## change one operator, bound or constant at a time and list what no test notices, an hour (N=100 SEED=n ONLY=file.c, SANITIZERS=1 to run the rest with those, AGAIN=report.json to try its rest again); build/mutants/report.json
	@BUILD=$(BUILD) $(PYTHON) tests/mutants/run_mutants.py $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)') $(if $(SANITIZERS),--sanitizers) $(if $(AGAIN),--again '$(AGAIN)') $(N)
