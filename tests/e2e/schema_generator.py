"""Random JSON Schemas of the supported keywords, for test_grammar.py. The same seed gives the same schemas."""
import random

WORDS = ["id", "name", "tags", "size", "kind", "a b", "é", "x/y", "\"q\"", "n1", "list", "when"]
PATTERNS = ["^[a-z]{1,6}$", "[A-Z]\\d{2,4}", "^(red|green|blue)$", "^é+[x-z]?$", "\\w+@\\w+", "[^0-9]{2,5}", "^\\d{3}-\\d{4}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "json-pointer", "duration", "uri"]
CONSTANTS = ["red", "a b", "é\n", 7, -2.5, True, None, [1, "x"], {"k": 1}]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self):
        """A schema whose top level is an object or an array, so that outputs have several parts."""
        self.definitions = {}
        schema = self.object(0) if self.random.random() < 0.7 else self.array(0)
        if self.definitions:
            schema["$defs"] = self.definitions
        if self.random.random() < 0.3:
            schema["title"] = "T"
            schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        return schema

    def value(self, depth):
        leaves = [self.string, self.integer, self.number, self.constant, lambda _: {"type": self.pick(["boolean", "null"])}]
        if depth >= 3:
            return self.pick(leaves)(depth)
        return self.pick(leaves * 2 + [self.object, self.array, self.union, self.reference, self.all_of])(depth)

    def pick(self, options):
        return self.random.choice(options)

    def string(self, _):
        kind = self.random.randrange(4)
        if kind == 0:
            least = self.random.randrange(3)
            return {"type": "string", "minLength": least, "maxLength": least + self.random.randrange(1, 12)}
        if kind == 1:
            return {"type": "string", "pattern": self.pick(PATTERNS)}
        if kind == 2:
            return {"type": "string", "format": self.pick(FORMATS)}
        return {"type": "string", "maxLength": 20}

    def integer(self, _):
        least = self.random.randrange(-200, 200)
        more = [{}, {"minimum": least}, {"minimum": least, "maximum": least + self.random.randrange(500)},
                {"exclusiveMinimum": least, "exclusiveMaximum": least + 2}, {"multipleOf": self.random.randrange(2, 30)}]
        return {"type": "integer", **self.pick(more)}

    def number(self, _):
        least = self.random.randrange(-50, 50) / 4
        more = [{}, {"minimum": least, "maximum": least + 3.5}, {"exclusiveMaximum": least}, {"minimum": least}]
        return {"type": "number", **self.pick(more)}

    def constant(self, _):
        if self.random.random() < 0.4:
            return {"const": self.pick(CONSTANTS)}
        return {"enum": self.random.sample(CONSTANTS, self.random.randrange(1, 5))}

    def array(self, depth):
        schema = {"type": "array"}
        kind = self.random.randrange(3)
        if kind == 0:
            schema["prefixItems"] = [self.value(depth + 1) for _ in range(self.random.randrange(1, 4))]
            if self.random.random() < 0.5:
                schema["items"] = self.pick([False, self.value(depth + 1)])
            else:
                schema["minItems"] = len(schema["prefixItems"])
        else:
            schema["items"] = self.value(depth + 1)
            schema["minItems"] = self.random.randrange(3)
        schema["maxItems"] = schema.get("minItems", 0) + len(schema.get("prefixItems", [])) + self.random.randrange(4)
        return schema

    def object(self, depth):
        if self.random.random() < 0.15:
            return self.named_by_pattern(depth)
        names = self.random.sample(WORDS, self.random.randrange(1, 5))
        schema = {"type": "object", "properties": {name: self.value(depth + 1) for name in names}}
        schema["required"] = self.random.sample(names, self.random.randrange(len(names) + 1))
        kind = self.random.randrange(5)
        if kind == 0:
            schema["additionalProperties"] = False
        elif kind == 1:
            schema["additionalProperties"] = self.value(depth + 1)
            schema["maxProperties"] = len(names) + 2
        elif kind == 2:
            schema["minProperties"] = self.random.randrange(len(names) + 1)
        elif kind == 3:
            schema["maxProperties"] = max(1, len(schema["required"]), self.random.randrange(len(names) + 1))
        return schema

    def named_by_pattern(self, depth):
        schema = {"type": "object", "maxProperties": 3}
        if self.random.random() < 0.5:
            schema["patternProperties"] = {"^[a-z]{2,4}$": self.value(depth + 1)}
            schema["additionalProperties"] = False
        else:
            schema["propertyNames"] = self.pick([{"pattern": "^k[0-9]$"}, {"enum": ["one", "two"]}, {"maxLength": 4}])
            schema["additionalProperties"] = self.value(depth + 1)
        return schema

    def union(self, depth):
        kind = self.random.randrange(3)
        if kind == 0:
            return {"anyOf": [self.value(depth + 1) for _ in range(self.random.randrange(1, 4))]}
        if kind == 1:
            return {"oneOf": [self.string(depth), self.integer(depth), {"type": "null"}]}
        branches = [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.value(depth + 1)},
                     "required": ["kind", "value"]} for kind in ("a", "b")]
        return {"oneOf": branches}

    def reference(self, depth):
        name = f"d{len(self.definitions)}"
        self.definitions[name] = {}  # reserves the name
        if self.random.random() < 0.3:  # a linked list, which ends with null
            self.definitions[name] = {"type": "object", "properties": {
                "v": self.integer(depth), "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}},
                "required": ["v", "next"]}
        else:
            self.definitions[name] = self.value(depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def all_of(self, depth):
        first, second = self.random.sample(WORDS, 2)
        parts = [{"type": "object", "properties": {name: self.value(depth + 1)}, "required": [name]} for name in (first, second)]
        return {"allOf": parts}


def schemas(seed, count):
    generator = Generator(seed)
    return [generator.schema() for _ in range(count)]
