"""Where the program is."""

import os
import pathlib
import shutil


class BinaryNotFound(RuntimeError):
    """No program was found, or the one that is named cannot be run."""


def find_binary():
    """The path of `moxie`: MOXIE_BINARY, else the wheel's own, else the first on PATH.

    A script `moxie` of this package on PATH would start itself again: only files that are ELF
    programs count there.
    """
    named = os.environ.get("MOXIE_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise BinaryNotFound(f"MOXIE_BINARY: {named} is no program that may be run")
        return named
    own = pathlib.Path(__file__).with_name("bin") / "moxie"
    if own.is_file():
        return str(own)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("moxie", path=folder) if folder else None
        if found:
            with open(found, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return found
    raise BinaryNotFound("the program moxie was found neither in this package nor on PATH: install "
                         "the wheel moxie-engine, or set MOXIE_BINARY to the program")
