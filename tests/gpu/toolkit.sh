# SPDX-License-Identifier: Apache-2.0
# Sourced: where the CUDA toolkit is, and NCCL, cuBLASLt and cuDNN, which may lie elsewhere. Exports CUDA, NCCL, CUBLAS and
# CUDNN, folders with include/ in them; empty where there is none. What is set already stays.

# The toolkit is where nvcc is: in PATH, else in a usual folder. A wrapper elsewhere is asked where it stands.
find_toolkit() {
    local nvcc top
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc 2>/dev/null | head -n 1)
    [ -n "$nvcc" ] || return
    top=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    if [ ! -e "$top/include/cuda_runtime_api.h" ]; then
        top=$("$nvcc" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
        [ -z "$top" ] || top=$(readlink -f "$top")
    fi
    echo "$top"
}

# The folders that have a library: the toolkit, the system, Python's packages (nvidia-nccl-cu13 and its like), whichever Python
# has them.
library_folders() { # library_folders HEADER
    local top
    for top in ${CUDA:+"$CUDA"} /usr /usr/local; do
        [ ! -e "$top/include/$1" ] || echo "$top"
    done
    command -v python3 >/dev/null || return
    python3 - "$1" <<'PY'
import glob
import sys
folders = sys.path + sorted(glob.glob("/opt/*/lib/python3*/site-packages") + glob.glob("/usr/local/lib/python3*/*-packages"))
for folder in folders:
    for header in sorted(glob.glob(f"{folder}/nvidia/*/include/{sys.argv[1]}")):
        print(header[: -len("/include/" + sys.argv[1])])
PY
}
find_library() { # find_library HEADER
    library_folders "$1" | sed -n 1p
}
# The newest NCCL: an older one has no revoke.
find_nccl() {
    local top
    library_folders nccl.h | while read -r top; do
        echo "$(awk '$1 == "#define" && $2 == "NCCL_VERSION_CODE" { print $3; exit }' "$top/include/nccl.h") $top"
    done | sort -s -k 1,1nr | sed -n 1p | cut -d ' ' -f 2
}

export CUDA=${CUDA-$(find_toolkit)}
export NCCL=${NCCL-$(find_nccl)} CUBLAS=${CUBLAS-$(find_library cublasLt.h)} CUDNN=${CUDNN-$(find_library cudnn_backend.h)}
