"""Fails for every relative link of a Markdown file in the tree that leads nowhere: a file or folder
that is not there, or an anchor that no heading of the target makes.

    python3 tests/docs/links.py [FOLDER]     default: the repository
"""

import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s+(\S+)", re.M)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.+?)[ #]*$", re.M)


def without_code(text):
    return CODE.sub("", FENCE.sub("", text))


def anchors(path):
    """The names under which the headings of a file can be linked to, as GitHub makes them."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", path.read_text())):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        numbered, count = name, 0
        while numbered in found:
            count += 1
            numbered = f"{name}-{count}"
        found.add(numbered)
    return found


def dead_links(path, root):
    for match in LINK.finditer(without_code(path.read_text())):
        link = match.group(1) or match.group(2)
        if re.match(r"[a-z][a-z+.-]*:", link) or link.startswith("//"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.is_relative_to(root):
            yield link, "it leaves the repository"
        elif not target.exists():
            yield link, "there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield link, "the file has no such heading"


def markdown_files(root):
    """What git tracks or would track; in a folder without git everything but build folders."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        capture_output=True, text=True)
    if listed.returncode == 0:
        return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    return [path for path in root.rglob("*.md") if "build" not in path.relative_to(root).parts]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    files = sorted(markdown_files(root))
    faults = [f"{path.relative_to(root)}: {link}: {why}" for path in files
              for link, why in dead_links(path, root)]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(files)} Markdown files, {len(faults)} dead links")
    sys.exit(1 if faults or not files else 0)


if __name__ == "__main__":
    main()
