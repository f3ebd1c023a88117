# SPDX-License-Identifier: Apache-2.0
# What each optimizer costs in loss, tests/methods. `make test` has the table's recipes (tests/methods/test_methods.py).

.PHONY: methods
methods: all ## train a small model with every optimizer and compare losses with AdamW's; goes on where it was broken off (ONLY='Lion SGD' TEXT=path SEQUENCES=n JOBS=n)
	@BUILD=$(BUILD) TEXT='$(TEXT)' JOBS='$(JOBS)' SEQUENCES='$(SEQUENCES)' $(PYTHON) tests/methods/run_methods.py $(ONLY)

.PHONY: methods-link
methods-link: all ## train over slow links between two network namespaces (root), by each way to send less, beside the plans (ONLY='FSDP' SECONDS=n)
	@BUILD=$(BUILD) SECONDS='$(SECONDS)' $(PYTHON) tests/methods/run_links.py $(ONLY)
