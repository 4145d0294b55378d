#!/usr/bin/env bash
# Builds the wheel moxie-ops into build/package-ops: operations for Python, with CUDA where nvcc is.
#   tools/ops_package.sh [CMAKE_FLAG...]      e.g. -DMOXIE_CUDA_ARCHS=90a; JOBS=N processes
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/local/cuda/bin"

cmake --preset ops --log-level=NOTICE "$@" >/dev/null
cmake --build build/ops -j "${JOBS:-$(nproc)}" --target moxie_ops
rm -rf build/package-ops
python3 python/moxie_build.py --ops build/ops/src/ops/libmoxie_ops.so build/package-ops
