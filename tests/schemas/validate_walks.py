#!/usr/bin/env python3
"""Reads lines {"schema", "seed", "text"} of moxie_schema_walks and checks every text with
python-jsonschema: validate_walks.py WALKS_BINARY SEEDS."""

import collections
import json
import subprocess
import sys

import checking

# Where undeclared names may come a name may come twice, as in most JSON; the last one counts.
OPEN = {"object_map", "object_declared_and_more", "object_pattern_properties", "object_name_enum",
        "object_pattern_and_declared", "object_property_names", "object_key_prefixes",
        "unevaluated_more"}


def main():
    binary, seeds = sys.argv[1:]
    walks = subprocess.run([binary, str(checking.SCHEMAS), seeds], stdout=subprocess.PIPE, check=True)
    checked = collections.Counter()
    faults = []
    for line in walks.stdout.decode("utf-8").splitlines():
        walk = json.loads(line)
        name = walk["schema"]
        if "refused" in walk:
            faults.append(f"{name}: refused: {walk['refused']}")
            continue
        fault = checking.fault(walk["text"], checking.load(name), name not in OPEN)
        checked[name] += 1
        if fault:
            faults.append(f"{name} seed {walk['seed']}: {fault}: {walk['text'][:300]}")
    for name in checking.names():
        if checked[name] < int(seeds) * 0.6:
            faults.append(f"{name}: only {checked[name]} texts of {seeds} came to an end")
    print(f"{sum(checked.values())} texts of {len(checked)} schemas checked, {len(faults)} faults")
    print("\n".join(faults[:40]))
    sys.exit(1 if faults or len(checked) < 60 else 0)


if __name__ == "__main__":
    main()
