# SPDX-License-Identifier: Apache-2.0
# What moments in bf16 cost in loss.

.PHONY: moments
moments: all ## 500 steps with moments in bf16, rounded either way, against fp32 (STEPS=n)
	@BUILD=$(BUILD) STEPS=$(or $(STEPS),500) $(PYTHON) tests/weights/moments.py
