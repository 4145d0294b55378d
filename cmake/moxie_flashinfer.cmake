# FlashInfer 0.6.0 (Apache 2.0): templates of attention kernels, and the CUTLASS headers (BSD 3) that
# they include and that a row of experts is made of, from the wheel of PyPI's flashinfer-python.
# Headers alone, in the build folder; only the files that moxie_flashinfer_options is given see them.
#
# Without them rows of attend and of experts are missing: that is an error unless MOXIE_FLASHINFER is
# OFF.
include(moxie_pypi)

set(MOXIE_HAS_FLASHINFER 0)
if(MOXIE_HAS_CUDA AND MOXIE_FLASHINFER)
  moxie_pypi_wheel(flashinfer-python 0.6.0
    e8be4fd2f9229a7faef411579439eebc6c6dc54893d62bd50498f374cd04cc16 moxie_flashinfer
    flashinfer/data/include/flashinfer flashinfer/data/cutlass/include
    flashinfer/data/cutlass/tools/util/include)
  if(NOT moxie_flashinfer)
    message(FATAL_ERROR
      "FlashInfer's headers are not to be had: ${moxie_flashinfer_error}\n"
      "Put flashinfer_python-0.6.0-py3-none-any.whl (PyPI's wheel) into build/downloads, or "
      "configure with -DMOXIE_FLASHINFER=OFF: then the rows attend_*_flashinfer_* and "
      "experts_*_cutlass_sm100 are left out.")
  endif()
  set(MOXIE_HAS_FLASHINFER 1)
  # The templates call functions of the host that are constexpr.
  set(moxie_flashinfer_options --expt-relaxed-constexpr)
  foreach(folder include cutlass/include cutlass/tools/util/include)
    list(APPEND moxie_flashinfer_options -isystem=${moxie_flashinfer}/flashinfer/data/${folder})
  endforeach()
endif()
