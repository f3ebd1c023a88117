#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ranges.c and ranges.h into a folder: what the options of titan/options.proto say of each field that another process sends. These are the
fields of internal messages but answers to nodes that enrol, and of requests of titan.v1 with all messages inside of them."""
import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

FILES = ["titan/v1/titan.proto", *(f"titan/internal/{name}.proto" for name in ("agent", "worker", "enrol"))]
# Of a type: the least, and the most where a field needs no option. An enum's is its largest value.
LIMITS = {Field.TYPE_INT32: (-1 << 31, (1 << 31) - 1), Field.TYPE_INT64: (-1 << 63, None), Field.TYPE_UINT32: (0, (1 << 32) - 1),
          Field.TYPE_BOOL: (0, 1), Field.TYPE_MESSAGE: (0, 1)}


def load():
    """(descriptors of the files, module of the options) by protoc. Debian's has no descriptor.proto with it; Python's package has."""
    google = descriptor_pb2.FileDescriptorSet()
    google.file.add().ParseFromString(descriptor_pb2.DESCRIPTOR.serialized_pb)
    with tempfile.TemporaryDirectory(prefix="titan-ranges-") as name:
        folder = Path(name)
        (folder / "google.fds").write_bytes(google.SerializeToString())
        subprocess.run(["protoc", f"--descriptor_set_in={folder}/google.fds", f"--proto_path={Path(__file__).parent}", f"--python_out={folder}",
                        f"--descriptor_set_out={folder}/all.fds", "titan/options.proto", *FILES], check=True)
        sys.path.insert(0, name)
        options = importlib.import_module("titan.options_pb2")
        return [f for f in descriptor_pb2.FileDescriptorSet.FromString((folder / "all.fds").read_bytes()).file if f.name in FILES], options


def range_of(field, r, enums):
    """The range r of a field's options, with what its type says. A ValueError says what is wrong with them."""
    low, high = (0, enums[field.type_name]) if field.type == Field.TYPE_ENUM else LIMITS.get(field.type, (0, None))
    text = field.type == Field.TYPE_STRING
    if not r.HasField("max"):
        if high is None and not r.any:
            raise ValueError("its type wants a range")
        r.min, r.max = r.min if r.HasField("min") else low, high or 0
    if bool(r.count) != (field.label == Field.LABEL_REPEATED):
        raise ValueError("a field has a count exactly when it is repeated")
    if (r.path or r.seen or r.chars) and not text or r.any and not text and field.type != Field.TYPE_DOUBLE:
        raise ValueError("an option is not for its type")
    if r.min < low or r.min > r.max or high is not None and r.max > high and field.type != Field.TYPE_ENUM:
        raise ValueError(f"{r.min} to {r.max} is no range of its type")
    return r


def c_row(r):
    chars = re.sub(r"([a-z0-9])-([a-z0-9])", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), r.chars, flags=re.I)
    values = [f".min = INT64_C({r.min})", f".max = UINT64_C({r.max})", f".count = {r.count}"] + [f".{f} = true" for f in ("any", "path", "seen") if getattr(r, f)]
    return "{" + ", ".join(values + ([f'.chars = "{chars}"'] if chars else [])) + "}"


def main(folder):
    files, options = load()
    messages = {f".{f.package}.{m.name}": m for f in files for m in f.message_type}
    enums = {f".{f.package}.{e.name}": max(v.number for v in e.value) for f in files for e in f.enum_type}
    kinds = {v.number: (v.name, v.GetOptions().Extensions[options.of]) for v in options.Kind.DESCRIPTOR.values}
    checked = [m.input_type for f in files for s in f.service for m in s.method]
    checked += [name for name in messages if name.startswith(".titan.internal.") and not name.endswith("Response")]
    for name in checked:
        checked += [f.type_name for f in messages[name].field if f.type == Field.TYPE_MESSAGE and f.type_name not in checked]
    rows, tables, wrong = [], [], []
    for name in sorted(set(checked)):
        fields = sorted(messages[name].field, key=lambda f: f.number)
        c_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[1:]).lower().replace(".", "__")
        tables.append(f"    {{&{c_name}__descriptor, {c_name if fields else 'NULL'}, {len(fields)}}},")
        rows += [f"static const struct range {c_name}[] = {{"] if fields else []
        for f in fields:
            given, r = f.options.Extensions, options.Range()
            if f.options.HasExtension(options.holds):
                r.CopyFrom(kinds[given[options.holds]][1])
            r.MergeFrom(given[options.range])
            try:
                rows.append(f"    {c_row(range_of(f, r, enums))}, /* {f.name} */")
            except ValueError as error:
                wrong.append(f"{name[1:]}.{f.name}: {error} (proto/titan/options.proto)")
        rows += ["};"] if fields else []
    if wrong:
        sys.exit("\n".join(wrong))
    head = "/* Made by proto/ranges.py of the options in the .proto files. */"
    (folder / "ranges.h").write_text("\n".join([head, *(
        f"#define RANGE_{name}_{what.upper()} UINT64_C({getattr(r, what)})" for name, r in kinds.values() for what in ("max", "count") if getattr(r, what)), ""]))
    (folder / "ranges.c").write_text("\n".join([
        head, '#include "proto/ranges.h"', *(f'#include "{f[:-6]}.pb-c.h"' for f in FILES), *rows,
        "const struct range_table range_tables[] = {", *tables, "};", f"const size_t n_range_tables = {len(tables)};", ""]))


main(Path(sys.argv[1]))
