"""Writes the wheel moxie-engine: the client's sources and the program itself.

    python3 python/moxie_build.py BINARY FOLDER     the wheel of BINARY into FOLDER

It is also the build back end of pyproject.toml (PEP 517), so that `pip wheel python/` works with
MOXIE_BINARY set, without any package. The platform tag is read from the program: it may need no shared
library but those of the C library, and the newest version of these that it asks for is the tag's
(manylinux_2_34: glibc 2.34). readelf and strip are binutils'.
"""

import base64
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
DIST = "moxie_engine"
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
                    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}
WHEN = (1980, 1, 1, 0, 0, 0)  # of all members: the same content is the same file


def version():
    return re.search(r"^project\(moxie VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)


def readelf(what, binary):
    return subprocess.run(["readelf", "--wide", what, str(binary)], text=True, check=True,
                          capture_output=True, env={**os.environ, "LC_ALL": "C"}).stdout


def platform_tag(binary):
    needed = set(re.findall(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]", readelf("--dynamic", binary)))
    if needed - SYSTEM_LIBRARIES:
        raise SystemExit(f"moxie_build: {binary} needs {', '.join(sorted(needed - SYSTEM_LIBRARIES))}, which "
                         "not every machine has: take a build with MOXIE_STATIC=ON (make package)")
    machine = re.search(r"Machine:\s+(.*)", readelf("--file-header", binary)).group(1).strip()
    versions = [(int(major), int(minor)) for major, minor in
                re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf("--version-info", binary))]
    if machine not in MACHINES or not versions:
        raise SystemExit(f"moxie_build: {binary}: no dynamic program of x86-64 or aarch64 ({machine})")
    major, minor = max(versions)
    return f"manylinux_{major}_{minor}_{MACHINES[machine]}"


def metadata():
    return (f"Metadata-Version: 2.1\nName: moxie-engine\nVersion: {version()}\n"
            "Summary: Runs and serves mixture-of-experts models in the MX formats\n"
            "License: Apache-2.0\nRequires-Python: >=3.9\n"
            "Classifier: License :: OSI Approved :: Apache Software License\n"
            "Classifier: Operating System :: POSIX :: Linux\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text())


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
        copy = pathlib.Path(folder) / "moxie"
        shutil.copy(binary, copy)
        subprocess.run(["strip", str(copy)], check=True)
        return copy.read_bytes()


def write_wheel(binary, folder):
    tag = f"py3-none-{platform_tag(binary)}"
    name = f"{DIST}-{version()}-{tag}.whl"
    info = f"{DIST}-{version()}.dist-info"
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    wheel = Wheel(pathlib.Path(folder) / name)
    for source in sorted((HERE / "moxie").glob("*.py")):
        wheel.add(f"moxie/{source.name}", source.read_bytes())
    wheel.add("moxie/bin/moxie", stripped(binary), 0o755)
    for text in "LICENSE", "THIRD_PARTY_NOTICES.md":
        wheel.add(f"{info}/licenses/{text}", (ROOT / text).read_bytes())
    wheel.add(f"{info}/METADATA", metadata().encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: moxie_build\nRoot-Is-Purelib: false\n"
              f"Tag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nmoxie = moxie.__main__:main\n")
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
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(pathlib.Path(sys.argv[2]) / write_wheel(sys.argv[1], sys.argv[2]))
