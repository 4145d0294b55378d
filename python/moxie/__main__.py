"""`python -m moxie ...` and the script `moxie`: this process becomes the program."""

import os
import sys

from .binary import BinaryNotFound, find_binary


def main():
    try:
        binary = find_binary()
    except BinaryNotFound as error:
        sys.exit(f"moxie: error: {error}")
    # The program reads MOXIE_* as switches, and warns of names that it does not know.
    os.environ.pop("MOXIE_BINARY", None)
    os.execv(binary, ["moxie", *sys.argv[1:]])


if __name__ == "__main__":
    main()
