#!/usr/bin/env python3
"""The official JSON-Schema-Test-Suite, draft 2020-12: official_suite.py WALKS_BINARY SUITE SEEDS.

A schema of the suite may be refused. Of one that is enforced, every text drawn at random under its
grammar holds against it, as python-jsonschema says, and no instance that the suite calls invalid can
be written. SUITE is the folder of the draft; what lies below it (optional) is left out."""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import jsonschema

import checking

NUM_SCHEMAS = 368
NUM_ENFORCED = 215  # what is reached: it does not fall
NUM_ENFORCED_OVER_HTTP = 213  # requests with the character U+0000 are refused as such
ANSWERS_EACH = 3


def load(folder):
    """The suite's groups by a name for each: {"description", "schema", "tests"}."""
    return {
        f"{path.stem}_{i:03}": group
        for path in sorted(pathlib.Path(folder).glob("*.json"))
        for i, group in enumerate(json.loads(path.read_text(encoding="utf-8")))
    }


def run_walks(binary, suite, seeds):
    """The lines of moxie_schema_walks, with the suite's instances as texts."""
    with tempfile.TemporaryDirectory() as folder:
        schemas, texts = pathlib.Path(folder, "schemas"), pathlib.Path(folder, "texts")
        schemas.mkdir()
        texts.mkdir()
        for name, group in suite.items():
            instances = [json.dumps(test["data"], ensure_ascii=False) for test in group["tests"]]
            (schemas / f"{name}.json").write_text(json.dumps(group["schema"]))
            (texts / f"{name}.json").write_text(json.dumps(instances))
        walks = subprocess.run([binary, schemas, str(seeds), texts], stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in walks.stdout.decode("utf-8").splitlines()]


def instance_faults(group, admitted):
    """What the grammar admits although it is invalid, and what the validator would let through too.
    That it refuses a valid instance (it does so once) only makes it stricter."""
    validator = jsonschema.Draft202012Validator(group["schema"])
    for test, is_admitted in zip(group["tests"], admitted, strict=True):
        if is_admitted and not test["valid"]:
            yield f"an invalid instance can be written: {json.dumps(test['data'])[:200]}"
        if validator.is_valid(test["data"]) and not test["valid"]:
            yield f"this python-jsonschema does not know it for invalid: {test['description']}"


def main():
    binary, folder, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    suite = load(folder)
    refused = set()
    answers, admitted = collections.Counter(), collections.Counter()
    faults = []
    if len(suite) != NUM_SCHEMAS:
        faults.append(f"{folder} holds {len(suite)} schemas, not {NUM_SCHEMAS}")

    def draw(names, seeds):
        for line in run_walks(binary, {name: suite[name] for name in names}, seeds):
            name, group = line["schema"], suite[line["schema"]]
            at = f"{name} ({group['description']})"
            if "refused" in line:
                refused.add(name)
            elif "admitted" in line:
                faults.extend(f"{at}: {fault}" for fault in instance_faults(group, line["admitted"]))
                admitted[name] = sum(line["admitted"])
            else:
                answers[name] += 1
                fault = checking.fault(line["text"], group["schema"], twice_is_fault=False)
                if fault:
                    faults.append(f"{at}: {fault}: {line['text'][:200]}: "
                                  f"{json.dumps(group['schema'])[:400]}")

    draw(suite, seeds)
    enforced = [name for name in suite if name not in refused]
    # Where every name ends in a word, few texts drawn at random come to an end.
    draw([name for name in enforced if answers[name] < ANSWERS_EACH], 25 * seeds)
    for name in enforced:
        if answers[name] < ANSWERS_EACH:
            faults.append(f"{name}: only {answers[name]} texts came to an end")
    if len(enforced) < NUM_ENFORCED:
        faults.append(f"fewer than {NUM_ENFORCED} schemas are enforced")
    print(f"{len(enforced)} of {len(suite)} enforced, {answers.total()} answers and "
          f"{admitted.total()} instances of the suite checked, {len(faults)} faults")
    print("\n".join(faults[:40]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
