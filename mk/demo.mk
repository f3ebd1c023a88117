DATA ?=
demo: ## packages, build, and a 4-worker run on real text that loses a worker on the way (DATA=path for your own text)
	@$(MAKE) --no-print-directory deps
	@echo "packages: $(words $(packages)) needed, all there"
	@$(MAKE) --no-print-directory -j$(shell nproc) all
	@BUILD=$(BUILD) $(PYTHON) tests/demo/demo.py $(if $(DATA),--data '$(DATA)')
