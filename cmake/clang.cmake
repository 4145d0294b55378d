# Toolchain of the fuzz preset: the newest clang found. At least 18, because older ones cannot parse
# the <ranges> of the standard library beside g++ 12; libFuzzer comes with libclang-rt-N-dev.
if(NOT MOXIE_CLANG)
  find_program(MOXIE_CLANG NAMES clang++-21 clang++-20 clang++-19 clang++-18 clang++)
  if(NOT MOXIE_CLANG)
    message(FATAL_ERROR "no clang++ found: run tools/setup.sh check")
  endif()
endif()
string(REPLACE "clang++" "clang" moxie_clang_c "${MOXIE_CLANG}")
set(CMAKE_C_COMPILER ${moxie_clang_c})
set(CMAKE_CXX_COMPILER ${MOXIE_CLANG})
