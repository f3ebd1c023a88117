#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A slice of the matrix: every axis, pass and kind of model in few cases, and recipes drawn at random. test_matrix_more.py has the next."""
import matrix_slice

CASES = ["moe-oss cp2 tp2 ep2 ac=selective:op", "cp2 rotate=ring", "dps4 kv=4 rtp=out_of_place", "pp2 dps2 tp2 schedule=Interleaved1F1B async=true", "pp4 layers=8 schedule=DualPipeV",
         "dps3 reduce=microbatch bucketing=greedy", "dpr2 dps2 offload=true reshard=always",
         "deepseek dps2 tp2 ep2 ac=full experts=8 top_k=3 groups=4 limited=2 nope=13 value_dim=11 rope=yarn original=8",
         "qwen dps2 cp2 tp2 chunks=3", "qwen pp4 dps2 layers=6 schedule=Interleaved1F1B bucketing=greedy", "biased pp2 tp2 ac=selective:op", "gemma dps2 cp2 rotate=ring", "olmo dps2 tp2", "pp2 batch=7 schedule=InterleavedZeroBubble ac=memory_budget:0.4"]
SAME_BITS = [("dps2 cp2 rotate=ring rtp=in_place ac=full", "dps2 cp2 rotate=ring rtp=out_of_place ac=full"),
             ("float8=true canonical=true codes=true dps3", "float8=true canonical=true"),
             ("float8=true scales=scalify canonical=true codes=true dps3", "float8=true scales=scalify canonical=true"),
             ("moe canonical=true batch=12 dps4 ep2", "moe canonical=true batch=12"),
             ("moe-oss canonical=true batch=12 dps4 ep2", "moe-oss canonical=true batch=12"),
             ("moe dps2 ep2 ac=selective:op:1 fuse=false", "moe dps2 ep2 ac=selective:op:1")]
matrix_slice.run(CASES, SAME_BITS, drawn=2, refusals=12)
