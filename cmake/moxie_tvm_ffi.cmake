# The target tvm_ffi: the headers of apache-tvm-ffi 0.1.15.post2 (Apache 2.0), and its library, which
# libmoxie_ops.so is linked against and finds in the process when Python's `tvm_ffi` is imported. Both
# come from PyPI's wheel of one Python version; neither depends on it.
include(moxie_pypi)

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  message(FATAL_ERROR "MOXIE_OPS is for x86-64: the pinned wheel of apache-tvm-ffi is")
endif()
moxie_pypi_wheel(apache-tvm-ffi 0.1.15.post2
  059eed9bfc94bcd41650fb8eefde74040a1bc7e7b1a6f0a8ff897b02b118875b moxie_tvm_ffi
  TAG cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64
  tvm_ffi/include tvm_ffi/lib)
if(NOT moxie_tvm_ffi)
  message(FATAL_ERROR "apache-tvm-ffi, which MOXIE_OPS needs, is not to be had: ${moxie_tvm_ffi_error}")
endif()
add_library(tvm_ffi SHARED IMPORTED)
set_target_properties(tvm_ffi PROPERTIES
  IMPORTED_LOCATION ${moxie_tvm_ffi}/tvm_ffi/lib/libtvm_ffi.so
  INTERFACE_INCLUDE_DIRECTORIES ${moxie_tvm_ffi}/tvm_ffi/include)
