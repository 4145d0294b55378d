# What a package holds, and CPack's settings for the .deb; tools/package.sh runs it all.
#
# The binary itself writes the manual page and the completions, so a cross build has no package. The
# target moxie_package_files makes them; nothing else depends on it.
if(CMAKE_CROSSCOMPILING OR MOXIE_FUZZ OR MOXIE_SANITIZE)
  return()
endif()
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # not the tests
set(package_files ${CMAKE_BINARY_DIR}/package_files)

function(moxie_written name)  # NAME, the words behind `moxie`, and what the text goes through
  cmake_parse_arguments(ARG "GZIP" "" "WORDS" ${ARGN})
  set(command $<TARGET_FILE:moxie> ${ARG_WORDS})
  if(ARG_GZIP)
    list(APPEND command | gzip -9n)
  endif()
  add_custom_command(OUTPUT ${package_files}/${name}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${package_files}
    COMMAND ${command} > ${package_files}/${name}
    DEPENDS moxie COMMENT "Writing ${name}")
endfunction()
moxie_written(moxie.1.gz GZIP WORDS man)
moxie_written(moxie WORDS completions bash)
moxie_written(_moxie WORDS completions zsh)
moxie_written(moxie.fish WORDS completions fish)
add_custom_command(OUTPUT ${package_files}/changelog.gz
  COMMAND gzip -9nc ${CMAKE_SOURCE_DIR}/CHANGELOG.md > ${package_files}/changelog.gz
  DEPENDS ${CMAKE_SOURCE_DIR}/CHANGELOG.md COMMENT "Writing changelog.gz")
add_custom_target(moxie_package_files DEPENDS ${package_files}/moxie.1.gz ${package_files}/moxie
  ${package_files}/_moxie ${package_files}/moxie.fish ${package_files}/changelog.gz)

# As Debian asks: its copy of the licence is named, not repeated.
file(READ ${CMAKE_SOURCE_DIR}/THIRD_PARTY_NOTICES.md notices)
file(CONFIGURE OUTPUT ${package_files}/copyright @ONLY CONTENT
  "Copyright: the Moxie authors\nLicense: Apache-2.0, in /usr/share/common-licenses/Apache-2.0\n\n@notices@")

install(TARGETS moxie RUNTIME DESTINATION bin)
install(FILES ${package_files}/moxie.1.gz DESTINATION share/man/man1)
install(FILES ${package_files}/moxie DESTINATION share/bash-completion/completions)
install(FILES ${package_files}/_moxie DESTINATION share/zsh/vendor-completions)
install(FILES ${package_files}/moxie.fish DESTINATION share/fish/vendor_completions.d)
install(FILES ${package_files}/copyright ${package_files}/changelog.gz DESTINATION share/doc/moxie)
# lintian's objections to what is meant so.
install(FILES ${CMAKE_SOURCE_DIR}/cmake/moxie.lintian-overrides
  DESTINATION share/lintian/overrides RENAME moxie)
set(unit ${CMAKE_SOURCE_DIR}/deploy/systemd/moxie.service)
if(EXISTS ${unit})  # the unit starts what an administrator installed; the package's is elsewhere
  file(READ ${unit} text)
  string(REPLACE /usr/local/bin/moxie /usr/bin/moxie text "${text}")
  file(CONFIGURE OUTPUT ${package_files}/moxie.service CONTENT "${text}" @ONLY)
  install(FILES ${package_files}/moxie.service DESTINATION lib/systemd/system)
endif()

set(CPACK_PACKAGE_NAME moxie)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The Moxie maintainers <maintainers@users.noreply.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "runs and serves mixture-of-experts models in the MX formats")
set(CPACK_PACKAGE_DESCRIPTION "Moxie answers with gpt-oss models, whose experts are stored in
MXFP4, on CPUs and on NVIDIA GPUs, and serves them over HTTP with the
interfaces of OpenAI and Anthropic. A small model is part of the program.")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcurl4 | libcurl4t64, libzmq5")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_SOURCE_DIR}/build/package)
set(CPACK_SET_DESTDIR OFF)
include(CPack)
