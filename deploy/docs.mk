# make docs: docs/recipes.md from the parser's own table. A unit test says when it is stale.
.PHONY: docs
docs: $(BUILD)/tests/recipe-reference ## write docs/recipes.md
	@mkdir -p docs
	$(call say,DOCS,docs/recipes.md)$< >docs/recipes.md
$(BUILD)/tests/recipe-reference: $(call obj,tests/docs/recipe_reference.c) $(lib_base)
	$(link) $^ -lpthread -lm
