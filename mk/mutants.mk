# SPDX-License-Identifier: Apache-2.0
# Which changes of an operator, a bound or a constant does no test notice? tests/mutants; never part of `make test`.

.PHONY: mutants
mutants: ## change one operator, bound or constant at a time and list what no test notices, an hour (N=100 SEED=n ONLY=file.c); build/mutants/report.json
	@BUILD=$(BUILD) $(PYTHON) tests/mutants/run_mutants.py $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)') $(ARGS) $(or $(N),100)
