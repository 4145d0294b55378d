#!/usr/bin/env python3
"""Assembles every CUDA source for every architecture, and writes what each kernel takes of an SM:
docs/kernel-resources.md.

    tools/gpu/kernel_resources.py BUILD_FOLDER [--archs 80,86,89,90a,100a,120f] [--jobs N] [--json FILE]
                                  [--markdown docs/kernel-resources.md] [--only PART_OF_A_PATH]

BUILD_FOLDER was configured with CUDA: its compile_commands.json has the sources and their flags. Code
for one architecture alone is assembled for that one. `cuobjdump` and `nvdisasm` must be in PATH (PyPI:
nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm). --json keeps what was found, so that a later
run goes on where this one ended. Ends with 1 if a source does not assemble.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?(\S+?)[\s;](.*)$")
WAIT_INSTRUCTIONS = 16  # a shorter loop waits for something


def sources(build):
    """(path, command without architectures and output, the only architectures or None)"""
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.suffix != ".cu" or ROOT not in path.parents:
            continue
        words = shlex.split(entry["command"])
        kept, only, i = [], set(), 0
        while i < len(words):
            if words[i] == "-gencode":
                only.add(re.sub(r".*code=(sm|compute)_", "", words[i + 1]))
                i += 2
            elif words[i] in ("-o", "-MF", "-MT"):
                i += 2
            elif words[i] in ("-MD", "--threads=2") or words[i].endswith("ccache"):
                i += 1
            else:
                kept.append(words[i])
                i += 1
        name = str(path.relative_to(ROOT))
        own = {"90a": "_sm90" in name or "fa3" in name, "100a": "_sm100" in name}
        found.append((name, kept, {arch for arch, is_own in own.items() if is_own} or None))
    return sorted(found)


def successors(code):
    """For each instruction (address, has a condition, name, operands) the indices of those after it."""
    index = {at: i for i, (at, *_) in enumerate(code)}
    after, waits, todo = {}, {0: {}}, [0]  # waits: where threads go on after a BSYNC, by its register
    while todo:
        i = todo.pop()
        _, has_condition, name, operands = code[i]
        name, *kinds = name.split(".")
        goals = [int(goal, 16) for goal in re.findall(r"0x([0-9a-f]+)", operands)]
        here, to = dict(waits[i]), [i + 1]
        if name == "BSSY":
            here[operands.split(",")[0].strip()] = frozenset(goals)
        elif name == "BSYNC":
            to = [index[at] for at in here.get(operands.split()[0], ())] or to
        elif name == "BRA":
            is_certain = not (has_condition or "DIV" in kinds or "CONV" in kinds or re.search(r"\bU?P\d", operands))
            to = [index[goals[-1]]] + ([] if is_certain else to)
        elif name in ("CALL", "JMP"):
            to = [index[at] for at in goals if at in index] + to
        elif name in ("EXIT", "RET"):
            to = to if has_condition else []
        after[i] = [k for k in to if k < len(code)]
        for k in after[i]:
            merged = {key: waits.get(k, {}).get(key, frozenset()) | here.get(key, frozenset())
                      for key in {*waits.get(k, {}), *here}}
            if k not in waits or merged != waits[k]:
                waits[k] = merged
                todo.append(k)
    return after


def natural_loops(after):
    """Sets of instructions, a set for each that loops go back to."""
    before = {0: []}
    for i, ks in after.items():
        for k in ks:
            before.setdefault(k, []).append(i)
    starts = sorted(i for i in before if i == 0 or before[i] != [i - 1] or after[i - 1] != [i])
    block_of, ends = {}, {}
    for i in sorted(before):
        block_of[i] = len(ends) - (i not in starts)
        ends[block_of[i]] = i
    preceding = [[block_of[i] for i in before[start]] for start in starts]
    dominators = [1] + [-1] * (len(starts) - 1)
    is_changed = True
    while is_changed:
        is_changed = False
        for b in range(1, len(starts)):
            common = -1
            for p in preceding[b]:
                common &= dominators[p]
            if common | 1 << b != dominators[b]:
                dominators[b], is_changed = common | 1 << b, True
    loops = {}
    for b, end in ends.items():
        for head in (block_of[k] for k in after[end]):
            if dominators[b] >> head & 1:
                body, todo = loops.setdefault(head, {head}), [b]
                while todo:
                    if (block := todo.pop()) not in body:
                        body.add(block)
                        todo += preceding[block]
    return [{i for block in body for i in range(starts[block], ends[block] + 1)} for body in loops.values()]


def spills_in_inner_loops(cubin, kernel):
    """Loads and stores of spilled registers in loops that hold no other loop but waits.

    Loops are found by what follows what: a block of instructions that lies behind the kernel's end, and jumps
    back, is none.
    """
    text = subprocess.run(["cuobjdump", "-sass", "-fun", kernel, cubin], capture_output=True, text=True, check=True)
    code = [(int(match[1], 16), match[2] is not None, match[3], match[4].split("/*")[0])
            for match in map(INSTRUCTION.match, text.stdout.splitlines()) if match]
    loops = [loop for loop in natural_loops(successors(code)) if len(loop) > WAIT_INSTRUCTIONS]
    inner = [loop for loop in loops if not any(other < loop for other in loops)]
    return sum(name.split(".")[0] in ("LDL", "STL") and any(i in loop for loop in inner)
               for i, (_, _, name, _) in enumerate(code))


def assemble(command, arch, folder):
    with tempfile.TemporaryDirectory() as scratch:
        cubin = str(pathlib.Path(scratch) / "kernels.cubin")
        flags = ["-cubin", "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v", "-o", cubin]
        done = subprocess.run([word for word in command if word != "-c"] + flags, cwd=folder, capture_output=True,
                              text=True)
        if done.returncode != 0:
            return None, done.stderr[-2000:]
        kernels = resources(done.stderr)
        for name, used in kernels.items():
            used["in_loops"] = spills_in_inner_loops(cubin, name) if used["spills"] else 0
    return kernels, ""


def resources(text):
    """What ptxas said of each kernel."""
    kernels, name = {}, None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            name = match[1]
            kernels[name] = {"registers": 0, "stack": 0, "spills": 0, "shared": 0}
        elif name and (match := FRAME.search(line)):
            kernels[name]["stack"] = int(match[1])
            kernels[name]["spills"] = int(match[2]) + int(match[3])
        elif name and (match := USED.search(line)):
            kernels[name]["registers"] = int(match[1])
            if shared := SHARED.search(line):
                kernels[name]["shared"] = int(shared[1])
            name = None
    return kernels


def demangle(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, text.stdout.splitlines()))


def short(name):
    """The function's own name, without its type, namespaces and arguments."""
    name = name.removeprefix("void ").replace("(anonymous namespace)", "")
    depth, end = 0, len(name)
    for i, letter in enumerate(name):
        if letter in "<(" and depth == 0:
            end = i
            break
    return name[:end].split("::")[-1]


def table(found, archs):
    """{(source, kernel): {arch: greatest of all instances}}"""
    names = demangle(sorted({name for by_arch in found.values() for kernels in by_arch.values() for name in kernels}))
    rows = {}
    for source, by_arch in found.items():
        for arch in archs:
            for name, used in by_arch.get(arch, {}).items():
                if used["registers"] <= 10 and used["shared"] == 0:
                    continue  # compiled for other architectures: an empty body
                cell = rows.setdefault((source, short(names[name])), {}).setdefault(
                    arch, {"instances": 0, "registers": 0, "stack": 0, "spills": 0, "shared": 0, "in_loops": 0})
                cell["instances"] += 1
                for key in ("registers", "stack", "spills", "shared", "in_loops"):
                    cell[key] = max(cell[key], used[key])
    return rows


def cell_text(cell):
    if cell is None:
        return "-"
    text = str(cell["registers"])
    if cell["shared"]:
        text += f", {cell['shared']:,} B"
    if cell["spills"]:
        text += f", spills {cell['spills']:,} B"
        if cell["in_loops"]:
            text += f" (**{cell['in_loops']} in an inner loop**)"
    elif cell["stack"]:
        text += f", stack {cell['stack']:,} B"
    return text


def markdown(rows, archs):
    lines = ["# What each kernel takes of an SM", "",
             "`tools/gpu/kernel_resources.py` wrote this page: it assembles every CUDA source for each architecture. A line is a kernel, with the greatest figures of its template instances: registers of a thread, static shared memory of a block, and bytes that spill, or of the stack where nothing spills (arrays with an index that is known at run time only). Bold: loads and stores of spilled registers in a loop that holds no other loop but waits. Shared memory that is chosen at launch is not in it: products by `mma.sync` take at most 99 KiB a block (a `static_assert`), rows for a few tokens what the device has, or 99 KiB where they are held to what any GPU has. A `-` is not compiled for that architecture. Code for sm_80 serves sm_86 and sm_89 too, so that their columns differ only in what the assembler makes of them.",
             "", "| kernel | source | instances | " + " | ".join(f"sm_{arch}" for arch in archs) + " |",
             "|---|---|---:|" + "---|" * len(archs)]
    spills = in_loops = 0
    for (source, kernel), by_arch in sorted(rows.items(), key=lambda row: (row[0][0], row[0][1])):
        spills += any(cell["spills"] for cell in by_arch.values())
        in_loops += any(cell["in_loops"] for cell in by_arch.values())
        instances = max(cell["instances"] for cell in by_arch.values())
        cells = " | ".join(cell_text(by_arch.get(arch)) for arch in archs)
        lines.append(f"| `{kernel}` | {source.removeprefix('src/')} | {instances} | {cells} |")
    lines += ["", f"{len(rows)} kernels; {spills} spill on some architecture, {in_loops} of them in an inner loop.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--archs", default="80,86,89,90a,100a,120f")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    archs = args.archs.split(",")
    found = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    work = [(name, command, arch) for arch in archs for name, command, only in sources(args.build)
            if args.only in name and (only is None or arch in only) and arch not in found.get(name, {})]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(assemble, command, arch, args.build): (name, arch) for name, command, arch in work}
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name, arch = futures[future]
            kernels, error = future.result()
            print(f"[{number}/{len(futures)}] {name} sm_{arch}", file=sys.stderr)
            if kernels is None:
                failed += 1
                print(error, file=sys.stderr)
                continue
            found.setdefault(name, {})[arch] = kernels
            if args.json:
                args.json.write_text(json.dumps(found, indent=1, sort_keys=True))
    text = markdown(table(found, archs), archs)
    if args.markdown:
        args.markdown.write_text(text)
    else:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
