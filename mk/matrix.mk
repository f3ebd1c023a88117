# SPDX-License-Identifier: Apache-2.0
# Every parallelism against one rank. `make test` has a slice of it (tests/equivalence/test_matrix_slice.py).

.PHONY: test-matrix
test-matrix: all ## every parallelism, alone and combined, against one rank (SEED=n DRAWS=200 ONLY=regex)
	@BUILD=$(BUILD) $(PYTHON) tests/equivalence/run_matrix.py $(if $(SEED),--seed $(SEED)) $(if $(DRAWS),--draws $(DRAWS)) $(if $(ONLY),--only '$(ONLY)')
