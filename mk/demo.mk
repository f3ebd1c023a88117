# SPDX-License-Identifier: Apache-2.0
DATA ?=
demo: ## packages, build, and a 4-worker run on real text that loses a worker on the way (DATA=path for your own text)
	@$(MAKE) --no-print-directory deps
	@echo "packages: $(words $(packages)) needed, all there"
	@$(MAKE) --no-print-directory -j$(shell nproc) all
	@BUILD=$(BUILD) $(PYTHON) tests/demo/demo.py $(if $(DATA),--data '$(DATA)')

# What the README shows: the demo, recorded on a terminal of its own.
.PHONY: demo-pictures
demo-pictures: all ## record `make demo`: docs/demo.svg and docs/loss.svg for the README
	@mkdir -p $(BUILD)/pictures
	@$(PYTHON) tests/docs/pictures.py record $(BUILD)/pictures/demo.cast -- make demo
	@$(PYTHON) tests/docs/pictures.py terminal $(BUILD)/pictures/demo.cast docs/demo.svg
	@$(PYTHON) tests/docs/pictures.py loss $(BUILD)/demo/state/jobs/1/metrics.jsonl $(BUILD)/demo/events.jsonl docs/loss.svg
