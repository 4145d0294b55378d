# Run at each build: writes OUT with the commit of SOURCE and whether files differ from it, and
# touches OUT only when that has changed. Outside a git checkout the commit is "unknown".
set(commit "unknown")
set(dirty "false")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} rev-parse -q --verify HEAD
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} --no-optional-locks status
        --porcelain --untracked-files=no
      OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      set(dirty "true")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// Written by the build.
#include "lab/commit.h"
const char* const moxie::kCommit = "@commit@";
const bool moxie::kCommitDirty = @dirty@;
]])
