#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hopper's copies and products without a GPU, on the emulator: what hopper.cuh has gives exact sums whenever copies land and
# products are carried out, and each mistake with them is caught; then attention and grouped products on them, against the fp64 reference. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate
build "$BUILD/cuda-emulated/check_hopper"
cp "$BUILD/cuda-emulated/check_hopper" "$own/"
export TITAN_HOPPER=1

right() { # right ASYNC ORDER: no mistake
    TITAN_EMULATE_ASYNC=$1 TITAN_EMULATE_ORDER=$2 "$own/check_hopper" >"$own/log" 2>&1 && return
    cat "$own/log"
    return 1
}
caught() { # caught ASYNC MISTAKE MESSAGE
    (TITAN_EMULATE_ASYNC=$1 "$own/check_hopper" "$2" >"$own/log" 2>&1; exit $?) 2>/dev/null && return 1
    grep -q "$3" "$own/log" && return
    cat "$own/log"
    return 1
}
mistake() { # mistake NAME MESSAGE [LATE]: caught whenever things happen; LATE: the message when they happen late
    local async
    for async in early late 5; do
        case $async in late) caught late "$1" "${3:-$2}" ;; early) caught early "$1" "$2" ;; *) caught $async "$1" "$2\|${3:-$2}" ;; esac || return
    done
}
for async in early late 1 2; do
    check "copies and products, $async: exact" right $async up
done
check "and with threads in the other order" right late down
check "a copy to a barrier that no fence made known is caught" mistake unknown_barrier "no fence made known"
check "a product before the wait for its tile" mistake too_early "some warp has not waited for" "has not landed"
check "a product after a wait for an old phase" mistake old_phase "a phase that never ends\|some warp has not waited for" "has not landed"
check "a barrier that is told too few bytes" mistake too_few_bytes "more bytes than its barrier was told"
check "a barrier that is told too many" mistake too_many_bytes "a phase that never ends"
check "a product without a fence of registers" mistake no_fence "without a fence of its registers"
check "sums that are read before the wait: NaN" mistake sums_read_early "128 sums differ"
check "sums that are written before the wait" mistake sums_written "sums were written while"
check "a tile that is filled again before the wait" mistake refilled_early "that a product may still read"
check "plain stores to a tile without a fence" mistake plain_stores "plain stores wrote, without a fence"
check "a warp that does not come to a product" mistake not_all_warps "do not call the same product"
check "a block that ends before its copies land" mistake no_copy_wait "sums differ" "before its copies have landed"
check "a block that ends before its products do" mistake no_product_wait "a block ends before its"

check "sums that are added from plain stores without a fence" mistake added_unfenced "sums are added that plain stores wrote"
check "a block that ends before its sums were added" caught late no_add_wait "a block ends before its added sums"
check "sums that are written again before they were added: others" caught late added_over "are added: [1-9][0-9]* sums differ"

on_them() { # on_them NAME CHECKS [VARIABLE=VALUE...]
    local name=$1 checks=$2
    shift 2
    env "$@" TITAN_TEST_ONLY="$checks" "$own/check_ops" >"$own/$name.log" 2>&1 && return
    grep -v '^ok' "$own/$name.log"
    return 1
}
check "attention on the tensor cores agrees with the reference, all early" on_them early attention_tiles TITAN_EMULATE_ASYNC=early
check "at random, threads in the other order" on_them random attention_tiles TITAN_EMULATE_ASYNC=11 TITAN_EMULATE_ORDER=down
check "late" on_them late attention_tiles TITAN_EMULATE_ASYNC=late
check "where the driver refuses to copy tiles it does, too" on_them refused attention_orders TITAN_FAKE_NO_TILES=1
check "grouped products do so too, all early" on_them grouped-early grouped_tiles TITAN_EMULATE_ASYNC=early
check "late, by blocks that make some of the tiles each" on_them grouped-late grouped_tiles TITAN_EMULATE_ASYNC=late TITAN_FAKE_PROCESSORS=5
check "at random, threads in the other order" on_them grouped-random grouped_tiles TITAN_EMULATE_ASYNC=11 TITAN_EMULATE_ORDER=down TITAN_FAKE_PROCESSORS=3
check "and where the driver refuses to copy tiles" on_them grouped-refused grouped_tiles TITAN_FAKE_NO_TILES=1
echo "1..$n"
exit $bad
