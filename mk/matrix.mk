# SPDX-License-Identifier: Apache-2.0
# Every parallelism against one rank. `make test` has a slice of it (tests/equivalence/test_matrix_slice.py), `make test-slow` another.

.PHONY: test-matrix float8
float8: all ## the debug model 200 steps in each recipe of float8 and in bfloat16 (minutes; RECIPE=file SET="key=value ...")
	@BUILD=$(BUILD) $(PYTHON) tests/equivalence/float8_loss.py $(or $(RECIPE),recipes/debug.toml) training.steps=200 lr_scheduler.warmup_steps=20 $(SET)
test-matrix: all ## every parallelism, alone and combined, against one rank (SEED=n DRAWS=200 ONLY=regex)
	@BUILD=$(BUILD) $(PYTHON) tests/equivalence/run_matrix.py $(if $(SEED),--seed $(SEED)) $(if $(DRAWS),--draws $(DRAWS)) $(if $(ONLY),--only '$(ONLY)')
