# Every parallelism against one rank. `make test` has a slice of it (tests/equivalence/test_matrix_slice.py).

.PHONY: test-matrix
test-matrix: all ## every parallelism, alone and combined, against one rank (ONLY=regex for some)
	@BUILD=$(BUILD) $(PYTHON) tests/equivalence/run_matrix.py $(if $(ONLY),--only '$(ONLY)')
