# SPDX-License-Identifier: Apache-2.0
# Very many simulated agents over real sockets against one real coordinator.

$(BUILD)/tests/scale/agents: $(BUILD)/obj/tests/scale/agents.o $(lib_daemon) $(lib_state) $(lib_proto) $(lib_base)
	$(link) $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(libs_state) $(libs_rpc)

.PHONY: scale
scale: all $(BUILD)/tests/scale/agents ## a coordinator with very many nodes (AGENTS=1000); results in build/scale
	@BUILD=$(BUILD) $(PYTHON) tests/scale/scale.py $(if $(AGENTS),--agents $(AGENTS))
