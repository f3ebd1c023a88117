#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""More of the matrix than test_matrix_slice.py has: with it every schedule family, and more recipes drawn at random. `make test-slow` runs it."""
import matrix_slice

CASES = ["pp2", "dpr2", "dps2", "cp2", "tp2", "moe dps2 ep2", "pp2 cp2 rotate=ring masked=true schedule=ZBVZeroBubble ac=selective:op",
         "pp2 dps2 csv=loop:1", "moe pp2 dps2 tp2 ep4 schedule=ZB1P", "moe tp2 rows=2 batch=2 seq=66 async=true",
         "pp2 schedule=LoopedBFS reshard=never", "pp4 layers=2 ac=selective:2", "pp2 layers=2 schedule=GPipe split=2",
         "pp2 layers=2 schedule=Interleaved1F1B", "qwen pp2 dps3 tp2 batch=7 schedule=ZB1P", "dps4 bucketing=off reorder=false prefetch=0"]
SAME_BITS = [("moe dps2 ep2 experts=2 top_k=1 rate=1 seq=384 batch=2 room=0.25", "moe dps2 ep2 experts=2 top_k=1 rate=1 seq=384 batch=2"),
             ("canonical=true dps3", "canonical=true"), ("canonical=true tp2 dpr2", "canonical=true tp2"),
             ("qwen pp2 canonical=true dps2", "qwen pp2 canonical=true"),
             ("deepseek canonical=true tp2 dps2 ep4", "deepseek canonical=true tp2"),
             ("pp2 schedule=ZBVZeroBubble ac=full fuse=false", "pp2 schedule=ZBVZeroBubble ac=full")]
matrix_slice.run(CASES, SAME_BITS, drawn=8, refusals=4)
