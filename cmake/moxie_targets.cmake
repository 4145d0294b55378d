# The functions that make targets: libraries, kernels with their own instruction sets, tests,
# fuzzers. No global flags: everything hangs on the interface target `moxie_flags`.

add_library(moxie_flags INTERFACE)
target_include_directories(moxie_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(moxie_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers>
  # False alarms of g++: `"text" + std::string` at -O2, vectors filled lane by lane at -O1. Clang
  # builds the fuzzers with its own, exact, warnings of this kind.
  # With precompiled headers those of -Warray-bounds and -Wstringop-overflow join them.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;-Wno-maybe-uninitialized;-Wno-array-bounds;-Wno-stringop-overflow>
  "$<$<COMPILE_LANGUAGE:CUDA>:${MOXIE_CUDA_FLAGS}>"
  # A target with CUDA code for some architectures alone sets the property and adds its own.
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<NOT:$<BOOL:$<TARGET_PROPERTY:MOXIE_OWN_CUDA_CODE>>>>:${MOXIE_CUDA_CODE}>")
target_compile_definitions(moxie_flags INTERFACE
  MOXIE_VERSION="${PROJECT_VERSION}" MOXIE_HAS_CUDA=${MOXIE_HAS_CUDA})
target_link_libraries(moxie_flags INTERFACE Threads::Threads)
if(MOXIE_STATIC)
  # The C library stays shared: the CUDA runtime loads the driver with dlopen.
  target_link_options(moxie_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()
if(MOXIE_SANITIZE)
  target_compile_options(moxie_flags INTERFACE
    -fsanitize=${MOXIE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(moxie_flags INTERFACE -fsanitize=${MOXIE_SANITIZE})
endif()
if(MOXIE_FUZZ)
  target_compile_options(moxie_flags INTERFACE
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(moxie_flags INTERFACE -fsanitize=address,undefined)
endif()

# What most sources include, parsed once for libraries and once, with GoogleTest, for tests. Headers
# of other people alone, so that no edit here compiles everything again. Sources with flags of their
# own and those of clang, which warns of such headers, read the headers themselves.
function(moxie_precompiled name)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU OR MOXIE_OPS)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Nothing but the headers.\n")
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE moxie_flags moxie_fmt nlohmann_json::nlohmann_json)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>" OUTPUT_VARIABLE headers)
  target_precompile_headers(${name} PRIVATE ${headers})
endfunction()
set(moxie_common_headers
  algorithm array atomic chrono cmath cstdint cstdio cstring filesystem fstream functional map memory
  mutex optional random set span sstream string string_view thread unordered_map utility vector
  fmt/format.h nlohmann/json.hpp)
moxie_precompiled(moxie_headers ${moxie_common_headers})
if(MOXIE_TESTS)
  moxie_precompiled(moxie_test_headers ${moxie_common_headers} gtest/gtest.h)
  if(TARGET moxie_test_headers)
    target_link_libraries(moxie_test_headers PRIVATE GTest::gtest)
  endif()
endif()
function(moxie_use_headers target from)
  if(TARGET ${from})
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# moxie_library(NAME SOURCES a.cpp ... DEPS moxie_core ...)
function(moxie_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC moxie_flags ${ARG_DEPS})
  moxie_use_headers(${name} moxie_headers)
endfunction()

# moxie_compile_quickly(TARGET): code whose speed nobody waits for, but whose compilation everybody
# does: it is optimised less.
function(moxie_compile_quickly target)
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()

# moxie_test(NAME SOURCES a_test.cpp ... DEPS moxie_core ... [TIMEOUT seconds]): one binary, one
# ctest entry; tests find vectors and models through core/testing/paths.h.
function(moxie_test name)
  if(NOT MOXIE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE
    moxie_flags ${ARG_DEPS} moxie_test_paths GTest::gtest GTest::gtest_main)
  moxie_use_headers(${name} moxie_test_headers)
  moxie_compile_quickly(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(ARG_TIMEOUT)
    set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()

# plant_rows(TARGET): the linker puts the tables of kernels/testing/planted_rows.cpp, which is among
# the target's sources, before the real ones, so that tests can plant faults in rows.
function(plant_rows target)
  if(NOT TARGET ${target})
    return()
  endif()
  foreach(params EmbedParams QkvParams AttendParams OutParams RouteParams ExpertsParams
      UnembedParams SampleParams)
    string(LENGTH ${params} length)
    target_link_options(${target} PRIVATE
      "LINKER:--wrap=_ZN5moxie2OpINS_${length}${params}EE4rowsEv")
  endforeach()
endfunction()

# moxie_fuzzer(NAME SOURCES x_fuzz.cpp DEPS ...): a libFuzzer binary; its corpus is fuzz/corpus/NAME.
function(moxie_fuzzer name)
  if(NOT MOXIE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE moxie_flags ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzzers)
  set_property(GLOBAL APPEND PROPERTY MOXIE_FUZZERS ${name})
endfunction()

# kernel_variant(TARGET SOURCE flags...): one source of TARGET compiled for one instruction set.
# The rows inside are chosen at run time by what the CPU has; nothing else may be compiled so.
function(kernel_variant target source)
  target_sources(${target} PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES
    COMPILE_OPTIONS "${ARGN}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# kernel_cuda(TARGET a.cu ...): the CUDA sources of TARGET, for every architecture of
# MOXIE_CUDA_ARCHS. Left out of a build without CUDA, where tables guard their rows by
# `#if MOXIE_HAS_CUDA`.
function(kernel_cuda target)
  if(MOXIE_HAS_CUDA)
    target_sources(${target} PRIVATE ${ARGN})
  endif()
endfunction()
