#!/bin/sh
# Fails if an object file compiled for one instruction set defines a symbol that the linker may share
# with common code (weak or unique): such a copy, if it is the one kept, ends the program on CPUs
# without those instructions. Arguments: nm, the library's object files.
nm=$1
shift
status=0
for object in "$@"; do
  case "$object" in
    *_avx2.cpp.o | *_avx512.cpp.o | *_avx512_vnni.cpp.o | *_avx512_bf16.cpp.o | *_avx512bf16.cpp.o | *_amx.cpp.o | *_neon_dot.cpp.o) ;;
    *) continue ;;
  esac
  num_checked=$((num_checked + 1))
  shared=$("$nm" -C --defined-only "$object" | grep ' [WVu] ')
  if [ -n "$shared" ]; then
    echo "$object defines shared symbols:"
    echo "$shared"
    status=1
  fi
done
echo "checked ${num_checked:-0} objects"
[ "${num_checked:-0}" -gt 0 ] || status=1
exit $status
