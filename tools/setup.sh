#!/usr/bin/env bash
# Installs what the named groups need, from the packages of Debian 12 or Ubuntu 24.04:
#   tools/setup.sh build test check arm deploy page package package-check gpu
# Says what it installs, does nothing (quickly) when all is there, needs root or sudo only when
# something is missing. `a|b` in a list means: the first of these that this system offers.
set -euo pipefail

packages_of() {
  case "$1" in
    build) # The compiler, the build tools (pip fetches a source package), the program's libraries.
      echo make g++ cmake ninja-build ccache pkg-config \
        python3 python3-pip \
        libfmt-dev libcli11-dev nlohmann-json3-dev libxxhash-dev libexpected-dev zlib1g-dev \
        'libboost1.81-dev|libboost1.83-dev' libssl-dev libcurl4-openssl-dev libzmq3-dev \
        libsqlite3-dev ;;
    test) # What only tests and micro-benchmarks use.
      echo libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev libpcre2-dev \
        python3 python3-venv openssl ;;
    check) # One formatter version for everybody; a clang that can parse libstdc++'s <ranges>.
      echo git clang-format-14 'clang-19|clang-18' 'libclang-rt-19-dev|libclang-rt-18-dev' \
        'clang-tidy-19|clang-tidy-18' ;;
    arm) # The cross compiler, the emulator, and what the aarch64 build links.
      echo g++-aarch64-linux-gnu qemu-user-static {libfmt,libgtest,libpcre2,librapidcheck}-dev:arm64 \
        {libssl,libcurl4-openssl,libzmq3,libsqlite3,zlib1g}-dev:arm64 ;;
    deploy) # Checks of deploy/: Prometheus with promtool, systemd-analyze, images without a daemon.
      echo prometheus systemd strace buildah mmdebstrap util-linux ca-certificates ;;
    page) # The browser of tests/page.
      echo chromium python3 python3-venv ;;
    package) # What CPack and the wheel ask of a binary.
      echo dpkg-dev binutils file gzip ;;
    package-check) # A bare Debian to install in, and those who read what the packages hold.
      echo mmdebstrap lintian zsh fish man-db groff-base python3-venv ;;
    gpu) # Static archives come with the -dev packages above; nvcc is looked for below.
      echo ;;
    *)
      echo "setup: no group '$1': choose among build, test, check, arm, deploy, page, package," \
        "package-check, gpu" >&2
      return 2 ;;
  esac
}

installed() { # true if one of the alternatives is installed
  local package
  for package in ${1//|/ }; do
    [[ " $have " == *" $package "* ]] && return 0
  done
  return 1
}

first_offered() { # the first alternative that this system's package lists know
  local package
  for package in ${1//|/ }; do
    if apt-cache show --no-all-versions "$package" >/dev/null 2>&1; then
      echo "$package"
      return
    fi
  done
  echo "${1%%|*}" # none: apt-get will name the first as missing
}

wanted=()
for group in "${@:-build}"; do
  list=$(packages_of "$group")
  read -r -a more <<<"$list" || true
  wanted+=("${more[@]}")
done

if [[ " $* " == *" gpu "* ]]; then
  if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    echo "setup: nvcc is missing: install NVIDIA's CUDA toolkit 13 (it is not among the packages of" \
      "Debian and Ubuntu in this version) and put it at /usr/local/cuda or on PATH" >&2
    exit 1
  fi
fi

if ! command -v apt-get >/dev/null; then
  echo "setup: this is neither Debian nor Ubuntu, so nothing is installed; the names there would be:" \
    "${wanted[*]}" >&2
  exit 0
fi

if [[ ${#wanted[@]} -eq 0 ]]; then exit 0; fi
# Names as apt-get takes them: with the architecture, and plain for this machine's own.
have=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Architecture}\n' 2>/dev/null |
  awk -v own="$(dpkg --print-architecture)" '$1 == "installed" {
    printf "%s:%s ", $2, $3
    if ($3 == own || $3 == "all") printf "%s ", $2 }')
missing=()
for alternatives in "${wanted[@]}"; do
  installed "$alternatives" || missing+=("$alternatives")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "setup: nothing to install ($*)"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing: ${missing[*]}; run this as root, or install sudo" >&2
    exit 1
  fi
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

if [[ " ${missing[*]}" == *:arm64* ]] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
  if ! grep -qx 'ID=debian' /etc/os-release; then
    echo "setup: packages for arm64 come from other servers here: name them in /etc/apt/sources.list" \
      "(on Ubuntu ports.ubuntu.com), run 'dpkg --add-architecture arm64', and start this again" >&2
    exit 1
  fi
  echo "setup: adding arm64 to the architectures of packages"
  "${as_root[@]}" dpkg --add-architecture arm64
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "setup: reading the package lists"
if ! apt update >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup: the package lists could not be read: see above" >&2
  exit 1
fi
names=()
for alternatives in "${missing[@]}"; do names+=("$(first_offered "$alternatives")"); done
echo "setup: installing ${names[*]}"
if ! apt install -y --no-install-recommends "${names[@]}" </dev/null >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "setup: apt-get could not install ${names[*]}: see above" >&2
  exit 1
fi
echo "setup: done"
