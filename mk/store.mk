# SPDX-License-Identifier: Apache-2.0
# The store on a disk that fails: every operation failing once, power cuts at many points. `make test` has a slice of it.

.PHONY: test-store
test-store: $(BUILD)/tests/unit/state/test_disk_faults ## the store under disk faults and 10,000 power cuts (SEED=n CUTS=10000)
	@STRIDE=1 CUTS=$(or $(CUTS),10000) $(if $(SEED),SEED=$(SEED)) $<
