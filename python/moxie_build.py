"""Writes the wheels: moxie-engine, the client's sources and the program itself, and moxie-ops, the
operations for Python and their library.

    python3 python/moxie_build.py BINARY FOLDER         moxie-engine with BINARY into FOLDER
    python3 python/moxie_build.py --ops LIBRARY FOLDER  moxie-ops with LIBRARY, libmoxie_ops.so

It is also the build back end of moxie-engine (PEP 517, pyproject.toml), so that `pip wheel python/`
works with MOXIE_BINARY set, without any package. The platform tag is read from the binary: it may need
no shared library but those of the C library (moxie-ops: and TVM-FFI's, which its dependency brings), and
the newest version of these that it asks for is the tag's (manylinux_2_34: glibc 2.34). readelf and strip
are binutils'.
"""

import base64
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
                    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}
WHEN = (1980, 1, 1, 0, 0, 0)  # of all members: the same content is the same file
# The headers that libmoxie_ops.so is built with: cmake/moxie_tvm_ffi.cmake.
TVM_FFI = "apache-tvm-ffi>=0.1.15.post2,<0.2"


@dataclasses.dataclass(frozen=True)
class Package:
    """What a wheel holds: the sources of a package, and one binary."""
    name: str            # of the wheel
    module: str          # the folder of its sources
    summary: str
    readme: str
    binary: str          # its place in the wheel
    needs: tuple = ()    # other wheels
    libraries: frozenset = frozenset()  # shared libraries that these bring
    entry_points: str = ""


ENGINE = Package("moxie-engine", "moxie", "Runs and serves mixture-of-experts models in the MX formats",
                 "README.md", "moxie/bin/moxie",
                 entry_points="[console_scripts]\nmoxie = moxie.__main__:main\n")
OPS = Package("moxie-ops", "moxie_ops", "Operations of Moxie for PyTorch and others, through TVM-FFI",
              "moxie_ops/README.md", "moxie_ops/libmoxie_ops.so", needs=(TVM_FFI,),
              libraries=frozenset({"libtvm_ffi.so"}))


def version():
    return re.search(r"^project\(moxie VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)


def readelf(what, binary):
    return subprocess.run(["readelf", "--wide", what, str(binary)], text=True, check=True,
                          capture_output=True, env={**os.environ, "LC_ALL": "C"}).stdout


def platform_tag(binary, libraries=frozenset()):
    needed = set(re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", readelf("--dynamic", binary)))
    strange = needed - SYSTEM_LIBRARIES - libraries
    if strange:
        raise SystemExit(f"moxie_build: {binary} needs {', '.join(sorted(strange))}, which not "
                         "every machine has: take a build with MOXIE_STATIC=ON (make package)")
    machine = re.search(r"Machine:\s+(.*)", readelf("--file-header", binary)).group(1).strip()
    versions = [(int(major), int(minor)) for major, minor in
                re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf("--version-info", binary))]
    if machine not in MACHINES or not versions:
        raise SystemExit(f"moxie_build: {binary}: no dynamic program of x86-64 or aarch64 ({machine})")
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{MACHINES[machine]}"


def metadata(package):
    needs = "".join(f"Requires-Dist: {need}\n" for need in package.needs)
    return (f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version()}\n"
            f"Summary: {package.summary}\n"
            f"License: Apache-2.0\nRequires-Python: >=3.9\n{needs}"
            "Classifier: License :: OSI Approved :: Apache Software License\n"
            "Classifier: Operating System :: POSIX :: Linux\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / package.readme).read_text())


class Wheel:
    """An archive with the RECORD that lists its members."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, WHEN)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}\n")

    def close(self, name):
        self.record.append(f"{name},,\n")
        self.add(name, "".join(self.record).encode())
        self.archive.close()


def stripped(binary):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "binary"
        shutil.copy(binary, copy)
        subprocess.run(["strip", str(copy)], check=True)
        return copy.read_bytes()


def write_wheel(binary, folder, package=ENGINE):
    tag = f"py3-none-{platform_tag(binary, package.libraries)}"
    dist = f"{package.name.replace('-', '_')}-{version()}"
    name = f"{dist}-{tag}.whl"
    info = f"{dist}.dist-info"
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    wheel = Wheel(pathlib.Path(folder) / name)
    for source in sorted((HERE / package.module).glob("*.py")):
        wheel.add(f"{package.module}/{source.name}", source.read_bytes())
    wheel.add(package.binary, stripped(binary), 0o755)
    for text in "LICENSE", "THIRD_PARTY_NOTICES.md":
        wheel.add(f"{info}/licenses/{text}", (ROOT / text).read_bytes())
    wheel.add(f"{info}/METADATA", metadata(package).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: moxie_build\nRoot-Is-Purelib: false\n"
              f"Tag: {tag}\n".encode())
    if package.entry_points:
        wheel.add(f"{info}/entry_points.txt", package.entry_points.encode())
    wheel.close(f"{info}/RECORD")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    binary = os.environ.get("MOXIE_BINARY")
    if not binary:
        raise SystemExit("moxie_build: set MOXIE_BINARY to the program that goes into the wheel")
    return write_wheel(binary, wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("moxie_build: there is no source distribution: the program is built by make package")


if __name__ == "__main__":
    chosen = OPS if sys.argv[1:2] == ["--ops"] else ENGINE
    operands = sys.argv[2 if chosen is OPS else 1:]
    if len(operands) != 2:
        raise SystemExit(__doc__)
    print(pathlib.Path(operands[1]) / write_wheel(*operands, chosen))
