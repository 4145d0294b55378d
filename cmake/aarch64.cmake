# Toolchain of the aarch64 preset: Debian's cross compiler, and qemu's user emulation to run what it
# builds. tools/setup.sh arm installs both, and the arm64 packages of the libraries that are linked.
#
# Programs are linked statically to the last library, so that the emulator needs no root file system
# of the other kind, and the binary runs on any aarch64 Linux. CPU models: QEMU_CPU=max, cortex-a53.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
# Not the building machine's libraries.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig)

find_program(MOXIE_QEMU qemu-aarch64-static DOC "Runs programs for aarch64")
if(NOT MOXIE_QEMU)
  message(FATAL_ERROR "qemu-aarch64-static was not found: run tools/setup.sh arm")
endif()
set(CMAKE_CROSSCOMPILING_EMULATOR ${MOXIE_QEMU})
