#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuDNN's part in attention without a GPU: the installed library takes the graphs; a stand-in carries them out in the
# emulated plug-in, against the fp64 reference; where there is none, or an old one, or none that serves a shape, our own
# kernels do, which is said once. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
needs "$EMULATED" "$CUDA/include/cuda_runtime_api.h:no CUDA toolkit" "$CUDNN/include/cudnn.h:no cuDNN in $CUDA or a Python package"
emulate
build cudnn-programs
cp -r "$BUILD"/cuda-emulated/{check_cudnn,fake} "$own/" # apart from the plug-in, which would find it

"$own/check_cudnn" >"$own/graphs.log"
code=$?
sed 's/^\(ok\|not ok\|1\.\.\)/# \1/' "$own/graphs.log"
check "the installed cuDNN takes every graph of attention" [ $code -eq 0 ]

attention() { # attention NAME MODE LIBRARY: the checks of its orders, with the stand-in so disposed
    TITAN_TEST_ONLY=attention_orders TITAN_FAKE_CUDNN=$2 TITAN_CUDNN=$3 "$own/check_ops" >"$own/$1.log" 2>"$own/$1.err"
    local code=$?
    [ $code -eq 0 ] || { grep -v '^ok' "$own/$1.log"; tail -n 5 "$own/$1.err"; }
    return $code
}
said() { # said NAME TEXT: in one line, and in no other one
    [ "$(grep -c "our own kernels" "$own/$1.err")" -eq 1 ] && grep -q "$2" "$own/$1.err"
}
fake=$own/fake/libcudnn.so.9
check "attention by the stand-in of cuDNN agrees with the reference" attention served count "$fake"
# Five shapes that it serves, forward and twice backward, in any order and to repeat.
check "it was asked for every shape that it serves, and for no other" grep -q "^cuDNN executed 30 graphs$" "$own/served.err"
check "and nothing is said of our own kernels" sh -c "! grep -q 'our own kernels' '$own/served.err'"
# A head's scores are 8192 bytes up to 64 tokens, 32768 up to 128: the five shapes have 4, 1, 3, 1 and 1 parts.
export TITAN_CUDNN_SCRATCH=16384
check "gradients that repeat agree with the reference in parts, too" attention parts count "$fake"
check "each part is an execution" grep -q "^cuDNN executed 40 graphs$" "$own/parts.err"
export TITAN_CUDNN_SCRATCH=2048
check "where a part's scratch is too much our own kernels serve" attention long count "$fake"
check "which is said of each shape" grep -q "pass=backward .*tokens=70.*too long for its scratch" "$own/long.err"
unset TITAN_CUDNN_SCRATCH
check "without a library our own kernels serve" attention missing count /nonexistent/libcudnn.so.9
check "which is said once" said missing "cuDNN cannot be loaded"
check "with an old one they serve" attention old old "$fake"
check "which is said once" said old "cuDNN 9.5.1 is too old: 9.10 or later is needed"
check "without an engine they serve" attention none none "$fake"
check "which is said of each shape" grep -q "does not serve this attention.*tokens=70.*NOT_SUPPORTED" "$own/none.err"
check "where an execution fails they serve" attention fail fail "$fake"
check "which is said of each shape" grep -q "pass=forward .*tokens=70.*EXECUTION_FAILED" "$own/fail.err"
echo "1..$n"
exit $bad
