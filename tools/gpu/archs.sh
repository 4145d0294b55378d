#!/usr/bin/env bash
# The architectures to compile GPU code for on this machine, as `make ARCHS=` takes them: those of
# its GPUs; without a GPU the portable code and Hopper's, which together are all of the code.
set -euo pipefail

archs=""
while read -r capability; do
  case $capability in
    8.*) arch=80 ;;
    9.0) arch=90a ;;
    10.0) arch=100a ;;
    12.*) arch=120f ;;
    *) continue ;;
  esac
  [[ ,$archs, == *,$arch,* ]] || archs+=${archs:+,}$arch
done < <(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true)
echo "${archs:-80,90a}"
