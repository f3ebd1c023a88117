# SPDX-License-Identifier: Apache-2.0
"""Messages that are right but for some fields: every field of every message below one, the least tried first."""
from google.protobuf.descriptor import FieldDescriptor as F

BOUNDS = {F.CPPTYPE_UINT64: (0, (1 << 64) - 1), F.CPPTYPE_UINT32: (0, (1 << 32) - 1), F.CPPTYPE_INT64: (-1 << 63, (1 << 63) - 1),
          F.CPPTYPE_INT32: (-1 << 31, (1 << 31) - 1), F.CPPTYPE_ENUM: (-1 << 31, (1 << 31) - 1)}
DEPTH = 5


class Mutator:
    """known(random, field, path) -> a value that is right, or None. Every draw is of random alone."""

    def __init__(self, random, known):
        self.random, self.known, self.tried = random, known, {}

    def fields(self, descriptor, depth=0, seen=()):
        """full names of every field below a message"""
        out = set()
        for field in descriptor.fields:
            out.add(field.full_name)
            if field.message_type and field.message_type.full_name not in seen and depth < DEPTH:
                out |= self.fields(field.message_type, depth + 1, (*seen, descriptor.full_name))
        return out

    def plain(self, field, path):
        value = self.known(self.random, field, path)
        if value is not None:
            return value
        r = self.random
        if field.cpp_type == F.CPPTYPE_BOOL:
            return r.random() < 0.5
        if field.cpp_type in (F.CPPTYPE_DOUBLE, F.CPPTYPE_FLOAT):
            return r.uniform(0, 10)
        if field.cpp_type == F.CPPTYPE_ENUM:
            return r.choice(field.enum_type.values).number
        if field.cpp_type == F.CPPTYPE_STRING:
            return r.choice([b"", b"x"]) if field.type == F.TYPE_BYTES else r.choice(["", "x"])
        return r.randrange(4)

    def set(self, message, field, value):
        """What the type cannot hold is left out."""
        try:
            if field.label == F.LABEL_REPEATED:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        except (ValueError, TypeError):
            pass

    def fill(self, message, path=(), depth=0):
        for field in message.DESCRIPTOR.fields:
            if field.containing_oneof and path == () and message.WhichOneof(field.containing_oneof.name) != field.name:
                continue
            self.give(message, field, path, depth)
        for oneof in message.DESCRIPTOR.oneofs:
            if path:
                self.give(message, self.random.choice(oneof.fields), path, depth)
        return message

    def give(self, message, field, path, depth):
        where = (*path, field.name)
        for _ in range(self.random.choice([1, 1, 2, 3]) if field.label == F.LABEL_REPEATED else 1):
            if field.message_type:
                if depth < DEPTH:
                    inner = getattr(message, field.name)
                    inner = inner.add() if field.label == F.LABEL_REPEATED else inner
                    inner.SetInParent()
                    self.fill(inner, where, depth + 1)
            else:
                self.set(message, field, self.plain(field, where))

    def wrong(self, field):
        r = self.random
        if field.cpp_type == F.CPPTYPE_BOOL:
            return r.random() < 0.5
        if field.cpp_type in (F.CPPTYPE_DOUBLE, F.CPPTYPE_FLOAT):
            return r.choice([float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e308, 5e-324, -0.0])
        if field.cpp_type == F.CPPTYPE_STRING:
            text = r.choice(["", "a" * r.choice([1, 63, 64, 65, 255, 256, 4096, 70000]), "../../../etc/passwd", "/", "na\0me", "\u202e",
                             "%s%n", "\n\x1b[2J", "127.0.0.1:0", "[::1]:99999", "unix:/", ":", "\U0001f680" * 30, " ", "n1 n2"])
            return text.encode() if field.type == F.TYPE_BYTES else text
        low, high = BOUNDS[field.cpp_type]
        near = r.choice([low, high, 0, 1, high // 2, high // 2 + 1, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, 10**6, high - 1, -1])
        return min(max(near + r.choice([0, 0, 0, 1, -1, r.randrange(1000)]), low), high)

    def places(self, message, out):
        for field in message.DESCRIPTOR.fields:
            out.append((message, field))
            if field.message_type:
                value = getattr(message, field.name)
                for inner in value if field.label == F.LABEL_REPEATED else [value] if message.HasField(field.name) else []:
                    self.places(inner, out)
        return out

    def change(self, message):
        """One field, the least tried of those there are (of a few drawn)."""
        r = self.random
        places = self.places(message, [])
        if not places:
            return
        some = [places[r.randrange(len(places))] for _ in range(8)]
        owner, field = min(some, key=lambda p: self.tried.get(p[1].full_name, 0))
        self.tried[field.full_name] = self.tried.get(field.full_name, 0) + 1
        if field.message_type:
            if field.label == F.LABEL_REPEATED and r.random() < 0.5 and len(getattr(owner, field.name)):
                items = getattr(owner, field.name)
                for _ in range(r.choice([1, 5, 100])):
                    items.add().CopyFrom(items[0])
            else:
                owner.ClearField(field.name)
        elif field.label == F.LABEL_REPEATED:
            if r.random() < 0.3:
                owner.ClearField(field.name)
            else:
                value = self.wrong(field)
                for _ in range(r.choice([1, 1, 2, 300])):
                    self.set(owner, field, value)
        elif field.containing_oneof is None or field.cpp_type != F.CPPTYPE_MESSAGE:
            self.set(owner, field, self.wrong(field))

    def bytes_of(self, message, changes=None):
        """Filled, changed in one to three fields, packed; at times the bytes are changed too."""
        r = self.random
        self.fill(message)
        for _ in range(r.choice([1, 1, 1, 2, 3]) if changes is None else changes):
            self.change(message)
        raw = message.SerializeToString()
        if changes is None and r.random() < 0.05 and raw:
            raw = bytearray(raw)
            for _ in range(r.choice([1, 1, 4])):
                raw[r.randrange(len(raw))] = r.randrange(256)
            raw = bytes(raw[:r.randrange(len(raw) + 1)] if r.random() < 0.3 else raw)
        return raw
