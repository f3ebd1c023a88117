#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training on two emulated GPU ranks, on some of the meshes that tests/gpu has: the losses of one CPU rank. And the whole product: titand
# with workers on the plug-in. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate
. tests/gpu/meshes.sh
"${PYTHON:-python3}" tests/gpu/text.py "$own/text" && make_documents "$own/text" "$own/documents" || bad=1
# Models as small as the meshes allow, four sequences a step: the emulator is slow.
data="--set training.dataset_path=$own/documents $(set_keys training.seq_len=32 training.local_batch_size=1)"
small="$data $(set_keys training.global_batch_size=4 model.n_layers=4 model.dim=32 model.n_heads=4 model.n_kv_heads=2 model.ffn_hidden=96)"
few="$data $(set_keys training.global_batch_size=4 model.n_layers=2)"
train_mesh() { # train_mesh NAME: the mesh on the emulator, one rank on the CPU
    local model ranks keys size=$small
    find_mesh "$1" || return
    case $model in experts | latent) size=$few ;; esac
    [ -e "$own/cpu-$model/metrics.jsonl" ] || train "cpu-$model" 1 cpu $size $(set_keys $(model_keys "$model")) || return
    train "mesh-$1" "$ranks" cuda $size $keys && same_losses 1e-5 "cpu-$model" "mesh-$1"
}
for mesh in tp-2 pp-2-1f1b pp-2-zbv cp-2-gather cp-2-masked ep-2 ep-2-latent; do
    check "training on $mesh, emulated, gives one CPU rank's losses" train_mesh $mesh
done
# Experts that two ranks share, in canonical mode: the bits of one rank.
canonical="$data $(set_keys training.global_batch_size=6 model.n_layers=2 model.name=llama3_moe model.flavor=tiny numerics.canonical=true)"
train canonical-1 1 cuda $canonical && train canonical-2 2 cuda $canonical $(set_keys parallelism.expert_parallel_degree=2)
check "experts shared by two emulated GPU ranks in canonical mode: the bits of one" same_losses 0 canonical-1 canonical-2
# Rows that experts have no room for: the CPU drops the same ones.
drop="$canonical $(set_keys moe.overflow=drop moe.capacity_factor=0.75)"
dropped() { grep -o '"expert_tokens_dropped":[0-9]*' "$own/$1/metrics.jsonl" | tr '\n' ' '; }
train drop-cpu 1 cpu $drop && train drop-2 2 cuda $drop $(set_keys parallelism.expert_parallel_degree=2)
check "where experts drop rows the losses are the CPU's" same_losses 1e-5 drop-cpu drop-2
check "and the rows are ($(dropped drop-2))" [ -n "$(dropped drop-2 | grep ':[1-9]')" -a "$(dropped drop-cpu)" = "$(dropped drop-2)" ]
echo "1..$n"

# titand loads the plug-in from where the real one is.
mkdir -p "$own/product/bin" "$own/product/lib/titan"
cp "$BUILD"/bin/titan* "$own/product/bin/"
cp "$own"/*.so* "$own/product/lib/titan/"
BUILD=$own/product "${PYTHON:-python3}" tests/gpu/elastic.py | grep -v '^1\.\.'
[ "${PIPESTATUS[0]}" -eq 0 ] || bad=1
exit $bad
