# Finds nvcc and turns CUDA on where it works: sets MOXIE_HAS_CUDA, or says why GPU code is left out.
#
# CMake 3.25 knows neither CUDA C++20 nor architectures with a letter, so that both are given as
# flags: MOXIE_CUDA_FLAGS holds the standard, MOXIE_CUDA_CODE one -gencode an architecture, and
# CMAKE_CUDA_ARCHITECTURES is off. Real code only, unless N-virtual asks for intermediate code: a
# device outside the list is refused at run time with the reason, never served by code compiled at
# start.

# sm_80: A100, and RTX 30 and 40, A10, L4, L40S. sm_90a: H100, H200, GH200. sm_100a: B200, GB200.
# sm_120f: RTX Blackwell and GB10.
set(MOXIE_CUDA_ARCHS 80 90a 100a 120f CACHE STRING "Architectures to compile for; one is quicker")
set(MOXIE_CUDA_FLAGS -std=c++20 --threads=2 -Werror=all-warnings
    -Xcompiler=-Wall -Xcompiler=-Wextra -Xcompiler=-Werror)
set(MOXIE_CUDA_CODE "")
foreach(arch IN LISTS MOXIE_CUDA_ARCHS)
  if(arch MATCHES "^([0-9]+)-virtual$")
    list(APPEND MOXIE_CUDA_CODE
         "SHELL:-gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1}")
  else()
    list(APPEND MOXIE_CUDA_CODE "SHELL:-gencode arch=compute_${arch},code=sm_${arch}")
  endif()
endforeach()

set(MOXIE_HAS_CUDA 0)
function(moxie_find_cuda why_not)
  if(DEFINED ENV{CUDACXX})
    set(MOXIE_NVCC $ENV{CUDACXX} CACHE FILEPATH "The CUDA compiler")
  endif()
  find_program(MOXIE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
               PATHS /usr/local/cuda PATH_SUFFIXES bin DOC "The CUDA compiler")
  if(NOT MOXIE_NVCC)
    set(${why_not} "nvcc was not found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${MOXIE_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${text}")
  if(NOT found OR CMAKE_MATCH_1 VERSION_LESS 13.0)
    set(${why_not} "${MOXIE_NVCC} is release '${CMAKE_MATCH_1}', 13.0 or newer is needed" PARENT_SCOPE)
    return()
  endif()
  set(ENV{CUDACXX} ${MOXIE_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(${why_not} "${MOXIE_NVCC} does not compile (see CMakeFiles/CMakeError.log)" PARENT_SCOPE)
  endif()
endfunction()

if(NOT MOXIE_CUDA)
  set(MOXIE_NO_CUDA "MOXIE_CUDA is off")
else()
  moxie_find_cuda(MOXIE_NO_CUDA)
endif()
if(NOT MOXIE_NO_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  # Otherwise both come from C++, and CMake stops at a dialect that it has no flag for.
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
  enable_language(CUDA)
  find_package(CUDAToolkit QUIET)
  if(NOT TARGET CUDA::cudart_static)
    set(MOXIE_NO_CUDA "the toolkit of ${MOXIE_NVCC} has no libcudart_static.a and libcudart.so")
  endif()
endif()
if(MOXIE_NO_CUDA)
  message(NOTICE "GPU code is left out: ${MOXIE_NO_CUDA}")
else()
  set(MOXIE_HAS_CUDA 1)
  message(STATUS "GPU code for ${MOXIE_CUDA_ARCHS} with nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
