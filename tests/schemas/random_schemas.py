#!/usr/bin/env python3
"""Makes schemas at random, walks through their grammars, and checks every text with python-jsonschema:
random_schemas.py WALKS_BINARY SEED COUNT. A schema may be refused; what is not must be enforced."""

import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import checking

NAMES = ["a", "ab", "b", "\u00e4"]
PATTERNS = ["^[a-c]{1,3}$", "^a", "b$", "^(x|yy)+$", "^.{0,2}$", "[0-9]", '^"?z$', "^[^a]b?\\\\?$"]
VALUES = [1, 2, "a", "b", None, True, {"a": 1}, [1], 2.5, "ab"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def maybe(self, chance):
        return self.random.random() < chance

    def number(self):
        return self.random.choice([0, 1, -3, 5, 2.5, -0.75, 10, 7])

    def integer(self):
        schema = {"type": "integer"}
        if self.maybe(0.6):
            schema["minimum"] = self.number()
        if self.maybe(0.6):
            schema["maximum"] = schema.get("minimum", 0) + self.random.randrange(9)
        if self.maybe(0.2):
            schema["multipleOf"] = self.random.choice([1, 2, 3])
        return schema

    def real(self):
        schema = {"type": "number"}
        if self.maybe(0.6):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = self.number()
        if self.maybe(0.6):
            key = self.random.choice(["maximum", "exclusiveMaximum"])
            schema[key] = self.number() + self.random.randrange(9)
        return schema

    def string(self):
        schema = {"type": "string"}
        if self.maybe(0.5):
            schema["pattern"] = self.random.choice(PATTERNS)
        if self.maybe(0.5):
            schema["minLength"] = self.random.randrange(4)
        if self.maybe(0.6):
            schema["maxLength"] = schema.get("minLength", 0) + self.random.randrange(6)
        return schema

    def leaf(self):
        choose = self.random.choice
        return choose(
            [
                self.integer,
                self.real,
                self.string,
                lambda: {"enum": self.random.sample(VALUES, self.random.randrange(1, 5))},
                lambda: {"const": choose(VALUES)},
                lambda: {"type": self.random.sample(["string", "null", "boolean", "integer"], 2)},
                lambda: {"type": "string", "format": choose(["date", "uuid", "ipv4", "time"])},
                lambda: choose([{}, True, {"type": "null"}, {"minimum": 3, "maximum": 8},
                                {"maxLength": 3}, {"type": "boolean"}]),
            ]
        )()

    def object(self, depth):
        schema = {"type": "object"} if self.maybe(0.8) else {}
        names = self.random.sample(NAMES, self.random.randrange(4))
        if names or self.maybe(0.5):
            schema["properties"] = {
                name: self.schema(depth) if self.maybe(0.92) else False for name in names
            }
        if self.maybe(0.7):
            schema["required"] = self.random.sample(NAMES, self.random.randrange(3))
        if self.maybe(0.5):
            schema["additionalProperties"] = self.random.choice([True, False, self.schema(depth)])
        if self.maybe(0.2):
            schema["maxProperties"] = self.random.randrange(4)
        if self.maybe(0.2):
            schema["minProperties"] = self.random.randrange(3)
        if self.maybe(0.12):
            pattern = self.random.choice(["^x", "^[c-e]$"])
            schema["patternProperties"] = {pattern: self.schema(depth)}
        if self.maybe(0.1):
            schema["propertyNames"] = self.random.choice(
                [{"maxLength": 2}, {"pattern": "^[a-z]+$"}, {"enum": ["a", "q"]}]
            )
        if self.maybe(0.15):
            schema["unevaluatedProperties"] = self.closing(depth)
        return schema

    def array(self, depth):
        schema = {"type": "array", "maxItems": self.random.randrange(5)}
        if self.maybe(0.8):
            schema["items"] = self.schema(depth) if self.maybe(0.9) else False
        if self.maybe(0.3):
            count = self.random.randrange(1, 3)
            schema["prefixItems"] = [self.schema(depth) for _ in range(count)]
        if self.maybe(0.5):
            schema["minItems"] = self.random.randrange(3)
        if self.maybe(0.15):
            schema["unevaluatedItems"] = self.closing(depth)
        return schema

    def closing(self, depth):
        return self.random.choice([False, False, True, self.schema(depth)])

    def combination(self, depth):
        kind = self.random.choice(["anyOf", "oneOf", "allOf", "$ref"])
        if kind == "$ref":
            schema = {"$ref": self.random.choice(["#/$defs/x", "#/$defs/y"])}
        else:
            schema = {kind: [self.schema(depth) for _ in range(self.random.randrange(1, 4))]}
        beside = {}
        if self.maybe(0.5):
            make = self.random.choice([self.leaf, self.members, self.members, self.array])
            beside = make() if make == self.leaf else make(depth)
        if self.maybe(0.3):
            key = self.random.choice(["unevaluatedProperties", "unevaluatedItems"])
            schema[key] = self.closing(depth - 1)
        return {**(beside if isinstance(beside, dict) else {}), **schema}

    def members(self, depth):
        """Properties, or a combination of several such schemas that hold for the same object."""
        if depth > 0 and self.maybe(0.4):
            kind = self.random.choice(["anyOf", "oneOf", "allOf"])
            schema = {kind: [self.members(depth - 1) for _ in range(self.random.randrange(1, 3))]}
        else:
            names = self.random.sample(NAMES, self.random.randrange(1, 3))
            schema = {"properties": {name: self.leaf() for name in names}}
            if self.maybe(0.5):
                schema["required"] = names[:1]
        if self.maybe(0.2):
            schema["unevaluatedProperties"] = self.closing(0)
        return schema

    def schema(self, depth):
        if depth <= 0 or self.maybe(0.25):
            return self.leaf()
        kind = self.random.choice(
            [self.object, self.object, self.array, self.combination, self.members]
        )
        return kind(depth - 1)

    def document(self):
        schema = self.schema(3)
        schema = schema if isinstance(schema, dict) else {"anyOf": [schema]}
        return {**schema, "$defs": {"x": self.leaf(), "y": self.schema(2)}}


def main():
    binary, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    maker = Maker(seed)
    with tempfile.TemporaryDirectory() as folder:
        schemas = {f"s{i}": maker.document() for i in range(count)}
        for name, schema in schemas.items():
            pathlib.Path(folder, f"{name}.json").write_text(json.dumps(schema))
        walks = subprocess.run([binary, folder, "8"], stdout=subprocess.PIPE, check=True)
    outcomes = collections.Counter()
    enforced = set()
    faults = []
    for line in walks.stdout.decode("utf-8").splitlines():
        walk = json.loads(line)
        if "refused" in walk:
            outcomes["refused"] += 1
            continue
        enforced.add(walk["schema"])
        outcomes["texts"] += 1
        fault = checking.fault(walk["text"], schemas[walk["schema"]], False)
        if fault:
            faults.append(f"{fault}: {walk['text'][:200]}: {json.dumps(schemas[walk['schema']])[:600]}")
    print(f"{count} schemas, {outcomes['refused']} refused, {len(enforced)} enforced, "
          f"{outcomes['texts']} texts, {len(faults)} faults")
    print("\n".join(faults[:10]))
    sys.exit(1 if faults or len(enforced) < count // 2 else 0)


if __name__ == "__main__":
    main()
