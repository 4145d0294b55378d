#!/usr/bin/env bash
# Builds the packages into build/package: a .deb and a Python wheel of the same static binary.
#   tools/package.sh [PRESET]      package-static (CPU alone), or gpu (with CUDA); JOBS=N processes
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-package-static}
export PATH="$PATH:/usr/local/cuda/bin"

cmake --preset "$preset" --log-level=NOTICE >/dev/null
cmake --build "build/$preset" -j "${JOBS:-$(nproc)}" --target moxie moxie_package_files
rm -rf build/package
mkdir -p build/package
log=build/$preset/cpack.log
if ! (cd "build/$preset" && cpack -G DEB) >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
rm -rf build/package/_CPack_Packages
python3 python/moxie_build.py "build/$preset/moxie" build/package >/dev/null
ls -l build/package
