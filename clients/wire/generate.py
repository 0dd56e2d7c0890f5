"""Writes `open_inference_pb2.py` and its `.pyi` from the .proto; `--check` only compares.

Not protoc's own Python output, for two reasons. Its modules enter the process-wide descriptor
pool, where Triton's client has symbols of the same names and the second to come fails; and they
refuse a protobuf runtime older than the compiler, while a descriptor loads in any.
"""

import argparse
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

HERE = Path(__file__).parent
PROTO = HERE / "open_inference.proto"
LINE_WIDTH = 88
SCALARS = {
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_FLOAT: "float",
    FieldDescriptorProto.TYPE_STRING: "str",
}
"""Python types of fields; what is not listed is an integer."""

HEADER = (
    "Generated from open_inference.proto by `python -m fermata.clients.wire.generate`; do not edit."
)

MODULE = '''"""{header}"""

from base64 import b64decode

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# A pool of our own: Triton's client has the same symbols in the default one.
_POOL = DescriptorPool()
_POOL.AddSerializedFile(
    b64decode(
{descriptor}
    )
)

_CLASSES = []  # The pool itself forgets those that nobody holds, and makes them anew.


def _at_home(descriptor, path):
    """Its class, which says where it lives: picklers would copy it by its parts otherwise."""
    message = GetMessageClass(descriptor)
    _CLASSES.append(message)
    message.__module__, message.__qualname__ = __name__, path
    for nested in descriptor.nested_types:
        if not nested.GetOptions().map_entry:
            _at_home(nested, f"{{path}}.{{nested.name}}")
    return message


DESCRIPTOR = _POOL.FindFileByName("open_inference.proto")
for _name, _descriptor in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = _at_home(_descriptor, _name)
for _enum in DESCRIPTOR.enum_types_by_name.values():
    globals().update((_value.name, _value.number) for _value in _enum.values)
'''

STUB = '''# ruff: noqa: N802
"""{header}"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Self, TypeVar

T = TypeVar("T")

DESCRIPTOR: Any

class _Message:
    DESCRIPTOR: Any
    @classmethod
    def FromString(cls, s: bytes) -> Self: ...
    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...
    def ByteSize(self) -> int: ...
    def Clear(self) -> None: ...
    def CopyFrom(self, other: Self) -> None: ...
    def HasField(self, field_name: str) -> bool: ...
    def ClearField(self, field_name: str) -> None: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...

class _Messages(list[T]):
    def add(self, **fields: Any) -> T: ...

{classes}
'''


def descriptor() -> FileDescriptorProto:
    """The compiled .proto, without what differs between compilers."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        arguments = ["protoc", f"-I{HERE}", f"--descriptor_set_out={out}", PROTO.name]
        if protoc.main(arguments) != 0:
            sys.exit(f"{PROTO.name} does not compile: correct what protoc printed above")
        files = FileDescriptorSet.FromString(out.read_bytes())
    file: FileDescriptorProto = files.file[0]
    _forget_json_names(file.message_type)
    return file


def _forget_json_names(messages: Iterable[DescriptorProto]) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _forget_json_names(message.nested_type)


def module_text(file: FileDescriptorProto) -> str:
    """The module: the descriptor as a literal, and a class for each message."""
    text = b64encode(file.SerializeToString(deterministic=True)).decode()
    lines = [f'        "{text[at : at + LINE_WIDTH]}"' for at in range(0, len(text), LINE_WIDTH)]
    return MODULE.format(header=HEADER, descriptor="\n".join(lines))


def stub_text(file: FileDescriptorProto) -> str:
    """Types of the same, so that callers are checked."""
    values = [f"{v.name}: int" for enum in file.enum_type for v in enum.value]
    lines = [line for message in file.message_type for line in _class(message, "")]
    return STUB.format(header=HEADER, classes="\n".join([*values, "", *lines]).rstrip())


def _class(message: DescriptorProto, indent: str) -> list[str]:
    inner = indent + "    "
    lines = [f"{indent}class {message.name}(_Message):"]
    maps = {each.name: each for each in message.nested_type if each.options.map_entry}
    for nested in message.nested_type:
        if nested.name not in maps:
            lines += _class(nested, inner)
    parameters: list[str] = []
    for field in message.field:
        held, given = _types(field, maps)
        lines.append(f"{inner}{field.name}: {held}")
        parameters.append(f"{inner}    {field.name}: {given} = ...,")
    if parameters:
        lines += [f"{inner}def __init__(", f"{inner}    self,", f"{inner}    *,", *parameters]
        lines.append(f"{inner}) -> None: ...")
    else:
        lines.append(f"{inner}def __init__(self) -> None: ...")
    return [*lines, ""]


def _types(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> tuple[str, str]:
    """The type that reading a field gives, and the one that its constructor takes."""
    if field.type != FieldDescriptorProto.TYPE_MESSAGE:
        one = SCALARS.get(field.type, "int")
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"list[{one}]", f"Iterable[{one}]"
        return one, one
    name = field.type_name.removeprefix(".inference.")
    entry = maps.get(name.rpartition(".")[2])
    if entry is not None:
        value = entry.field[1].type_name.removeprefix(".inference.")
        return f"MutableMapping[str, {value}]", f"Mapping[str, {value}]"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"_Messages[{name}]", f"Iterable[{name}]"
    return name, f"{name} | None"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail if the files would change")
    check = parser.parse_args().check
    file = descriptor()
    texts = {"open_inference_pb2.py": module_text(file), "open_inference_pb2.pyi": stub_text(file)}
    stale = [name for name, text in texts.items() if _read(HERE / name) != text]
    if check and stale:
        remedy = "run python -m fermata.clients.wire.generate"
        sys.exit(f"{', '.join(stale)} differ from {PROTO.name}: {remedy}")
    for name in stale:
        (HERE / name).write_text(texts[name])
    print(f"{'wrote ' + ', '.join(stale) if stale else 'up to date'}")


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
