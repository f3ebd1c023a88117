# SPDX-License-Identifier: Apache-2.0
# make docs: docs/recipes.md from the parser's own table, docs/metrics.md from that of metrics, docs/published.md, docs/step.svg and a table of docs/gpu.md from the
# planner, titanctl(1) from its help. Tests say when they are stale.
STEP_PICTURE := recipes/llama3_8b.toml --world 8 --device h100 --set model.n_layers=8 --set training.local_batch_size=4 \
	--set training.global_batch_size=8 --set activation_checkpoint.mode=none \
	--set parallelism.pipeline_parallel_degree=2 --set parallelism.tensor_parallel_degree=2 \
	--set parallelism.pipeline_parallel_microbatch_size=1 --set parallelism.pipeline_parallel_schedule=ZBVZeroBubble \
	--set job.description="One step: pp 2 x dp_shard 2 x tp 2, ZBVZeroBubble, 4 microbatches"
.PHONY: docs
docs: $(BUILD)/tests/recipe-reference $(BUILD)/tests/metric-reference $(BUILD)/bin/titan-worker $(BUILD)/bin/titanctl ## write docs/recipes.md, docs/metrics.md, docs/published.md, tables of docs/gpu.md and docs/methods.md, docs/step.svg, docs/man/titanctl.1
	@mkdir -p docs
	$(call say,DOCS,docs/recipes.md)$< >docs/recipes.md
	$(call say,DOCS,docs/metrics.md)$(BUILD)/tests/metric-reference >docs/metrics.md
	$(call say,DOCS,docs/published.md)$(PYTHON) tests/docs/published.py $(BUILD)/bin/titan-worker recipes >docs/published.md
	$(call say,DOCS,docs/gpu.md)$(PYTHON) tests/docs/gpu_operations.py $(BUILD)/bin/titan-worker
	$(call say,DOCS,docs/methods.md)$(PYTHON) tests/docs/conflicts.py $(BUILD)/bin/titanctl
	$(call say,DOCS,docs/step.svg)$(BUILD)/bin/titan-worker plan $(STEP_PICTURE) --picture docs/step.svg >/dev/null
	$(call say,DOCS,docs/man/titanctl.1)$(BUILD)/bin/titanctl help --man >docs/man/titanctl.1
$(BUILD)/tests/recipe-reference: $(call obj,tests/docs/recipe_reference.c) $(lib_base)
	$(link) $^ -lpthread -lm
$(BUILD)/tests/metric-reference: $(call obj,tests/docs/metric_reference.c) $(lib_base)
	$(link) $^
.PHONY: step-picture
step-picture:
	@$(BUILD)/bin/titan-worker plan $(STEP_PICTURE) --picture $(OUT) >/dev/null
