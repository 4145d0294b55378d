# moxie_pypi_source(NAME VERSION SHA256 OUT): the source package of a PyPI project, unpacked into the
# build folder; OUT is set to its folder, or to "" with the reason in OUT_error.
# moxie_pypi_wheel(NAME VERSION SHA256 OUT [TAG tag] PATTERN...): the same with its wheel for every
# platform, or with the wheel of one tag (cp312-cp312-manylinux_2_28_x86_64), of which only what lies
# under the folders PATTERN is unpacked.
#
# The archive is looked for in build/downloads, which all presets share, and fetched there by pip
# where it is missing: with neither network nor an archive the caller decides whether to stop. What
# comes is used only if its hash is the recorded one.

function(moxie_pypi_source name version sha256 out)
  set(folder ${CMAKE_BINARY_DIR}/third_party/${name}-${version})
  set(stamp ${folder}/.unpacked-${sha256})
  set(error "")
  if(NOT EXISTS ${stamp})
    moxie_pypi_archive(${name} ${version} ${sha256} ${name}-${version}.tar.gz --no-binary archive error)
    if(NOT error)
      file(REMOVE_RECURSE ${folder})
      file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${CMAKE_BINARY_DIR}/third_party)
      file(TOUCH ${stamp})
    endif()
  endif()
  moxie_pypi_answer()
endfunction()

function(moxie_pypi_wheel name version sha256 out)
  cmake_parse_arguments(ARG "" "TAG" "" ${ARGN})
  set(patterns ${ARG_UNPARSED_ARGUMENTS})
  set(tag py3-none-any)
  set(of_tag "")
  if(ARG_TAG)
    set(tag ${ARG_TAG})
    string(REPLACE "-" ";" parts ${tag})
    list(GET parts 0 python)
    list(GET parts 1 abi)
    list(GET parts 2 platforms)
    string(REPLACE "." ";--platform;" platforms ${platforms})
    string(REGEX REPLACE "^[a-z]+" "" python ${python})
    set(of_tag --implementation cp --python-version ${python} --abi ${abi} --platform ${platforms})
  endif()
  set(folder ${CMAKE_BINARY_DIR}/third_party/${name}-${version})
  set(stamp ${folder}/.unpacked-${sha256})
  set(error "")
  if(NOT EXISTS ${stamp})
    string(REPLACE - _ file ${name})
    moxie_pypi_archive(${name} ${version} ${sha256} ${file}-${version}-${tag}.whl --only-binary
      archive error ${of_tag})
    if(NOT error)
      file(REMOVE_RECURSE ${folder})
      list(TRANSFORM patterns APPEND /*)
      file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder} PATTERNS ${patterns})
      file(TOUCH ${stamp})
    endif()
  endif()
  moxie_pypi_answer()
endfunction()

# The two variables that the functions above leave to their callers.
macro(moxie_pypi_answer)
  if(error)
    set(${out} "" PARENT_SCOPE)
    set(${out}_error "${error}" PARENT_SCOPE)
  else()
    set(${out} ${folder} PARENT_SCOPE)
  endif()
endmacro()

# The archive `file` of build/downloads, fetched if it is not there: its path in OUT, or what went
# wrong in OUT_ERROR. `kind` is pip's flag for what it may fetch; further flags may follow.
function(moxie_pypi_archive name version sha256 file kind out out_error)
  set(downloads ${CMAKE_SOURCE_DIR}/build/downloads)
  set(archive ${downloads}/${file})
  set(${out} ${archive} PARENT_SCOPE)
  set(${out_error} "" PARENT_SCOPE)
  set(found "")
  if(EXISTS ${archive})
    file(SHA256 ${archive} found)
  endif()
  if(NOT found STREQUAL sha256)
    # Beside the archives, so that the finished one can be moved into place: two configurations may
    # run at once, and none sees half a file.
    string(RANDOM LENGTH 8 unique)
    set(fetched ${downloads}/fetching-${unique})
    file(MAKE_DIRECTORY ${fetched})
    find_program(MOXIE_PYTHON NAMES python3 DOC "Fetches source packages with its pip")
    if(NOT MOXIE_PYTHON)
      set(${out_error} "python3 was not found: run tools/setup.sh build" PARENT_SCOPE)
      file(REMOVE_RECURSE ${fetched})
      return()
    endif()
    message(STATUS "Fetching ${file}")
    # Of a source package pip runs the build back end to read its name: that takes some seconds.
    execute_process(
      COMMAND ${MOXIE_PYTHON} -m pip download --quiet --disable-pip-version-check --no-deps
        ${kind} ${name} ${ARGN} --dest ${fetched} ${name}==${version}
      RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(failed OR NOT EXISTS ${fetched}/${file})
      file(REMOVE_RECURSE ${fetched})
      string(STRIP "${text}" text)
      set(${out_error} "pip could not fetch ${name} ${version}: ${text}" PARENT_SCOPE)
      return()
    endif()
    file(SHA256 ${fetched}/${file} found)
    if(NOT found STREQUAL sha256)
      file(REMOVE_RECURSE ${fetched})
      set(${out_error} "${file} has SHA-256 ${found}, expected ${sha256}" PARENT_SCOPE)
      return()
    endif()
    file(RENAME ${fetched}/${file} ${archive})
    file(REMOVE_RECURSE ${fetched})
  endif()
endfunction()
