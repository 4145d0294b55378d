# moxie_pypi_source(NAME VERSION SHA256 OUT): the source package of a PyPI project, unpacked into the
# build folder; OUT is set to its folder, or to "" with the reason in OUT_error.
#
# The archive is looked for in build/downloads, which all presets share, and fetched there by pip
# where it is missing: with neither network nor an archive the caller decides whether to stop. What
# comes is used only if its hash is the recorded one.

function(moxie_pypi_source name version sha256 out)
  set(${out} "" PARENT_SCOPE)
  set(file ${name}-${version}.tar.gz)
  set(downloads ${CMAKE_SOURCE_DIR}/build/downloads)
  set(archive ${downloads}/${file})
  set(folder ${CMAKE_BINARY_DIR}/third_party/${name}-${version})
  set(stamp ${folder}/.unpacked-${sha256})
  if(EXISTS ${stamp})
    set(${out} ${folder} PARENT_SCOPE)
    return()
  endif()

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
      set(${out}_error "python3 was not found: run tools/setup.sh build" PARENT_SCOPE)
      file(REMOVE_RECURSE ${fetched})
      return()
    endif()
    message(STATUS "Fetching ${file}")
    # pip runs the package's own build back end to read its name: that takes some seconds.
    execute_process(
      COMMAND ${MOXIE_PYTHON} -m pip download --quiet --disable-pip-version-check --no-deps
        --no-binary ${name} --dest ${fetched} ${name}==${version}
      RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(failed OR NOT EXISTS ${fetched}/${file})
      file(REMOVE_RECURSE ${fetched})
      string(STRIP "${text}" text)
      set(${out}_error "pip could not fetch ${name} ${version}: ${text}" PARENT_SCOPE)
      return()
    endif()
    file(SHA256 ${fetched}/${file} found)
    if(NOT found STREQUAL sha256)
      file(REMOVE_RECURSE ${fetched})
      set(${out}_error "${file} has SHA-256 ${found}, expected ${sha256}" PARENT_SCOPE)
      return()
    endif()
    file(RENAME ${fetched}/${file} ${archive})
    file(REMOVE_RECURSE ${fetched})
  endif()

  file(REMOVE_RECURSE ${folder})
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${CMAKE_BINARY_DIR}/third_party)
  file(TOUCH ${stamp})
  set(${out} ${folder} PARENT_SCOPE)
endfunction()
