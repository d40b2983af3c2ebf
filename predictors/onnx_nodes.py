"""What an ONNX model holds, as far as a graph of boosted trees needs it: nodes, long lists of attributes, constants.

Serving has no ``onnx`` library; this reads the file format (protocol buffers) itself. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.predictors.wire_kernel import repeated

_GRAPH = 7
_NODE, _INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TEXT = 1, 3, 4
_ATTRIBUTE_FLOATS, _ATTRIBUTE_INTS, _ATTRIBUTE_TEXTS = 7, 8, 9
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_TENSOR_TYPES = {1: "<f4", 7: "<i8"}


class MalformedModelError(ValueError):
    """The bytes are no model that this reads."""


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """One node; attributes as they stand in the file."""

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, bytes]

    def ints(self, name: str) -> npt.NDArray[np.int64]:
        """A list of whole numbers; empty if there is none of this name."""
        return self._list(name, _ATTRIBUTE_INTS)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A list of float32 numbers."""
        return self._list(name, _ATTRIBUTE_FLOATS).astype(np.uint32).view(np.float32)

    def texts(self, name: str) -> npt.NDArray[np.int64]:
        """The fingerprints of a list of texts."""
        return self._list(name, _ATTRIBUTE_TEXTS)

    def _list(self, name: str, field: int) -> npt.NDArray[np.int64]:
        values: npt.NDArray[np.int64] = repeated(np.frombuffer(self.attributes.get(name, b""), dtype=np.uint8), field)
        return values

    def whole(self, name: str) -> int | None:
        """One whole number."""
        return next(
            (v for k, v in _fields(self.attributes.get(name, b"")) if k == _ATTRIBUTE_INT and isinstance(v, int)), None
        )

    def text(self, name: str) -> bytes | None:
        """One text."""
        return next(
            (v for k, v in _fields(self.attributes.get(name, b"")) if k == _ATTRIBUTE_TEXT and isinstance(v, bytes)),
            None,
        )


def read_model(model: bytes) -> tuple[list[OnnxNode], dict[str, npt.NDArray[np.generic]]]:
    """Its nodes in order, and its constants by name; ``MalformedModelError`` if it cannot be read."""
    nodes: list[OnnxNode] = []
    constants: dict[str, npt.NDArray[np.generic]] = {}
    for number, graph in _fields(model):
        if number != _GRAPH or not isinstance(graph, bytes):
            continue
        for part, value in _fields(graph):
            if part == _NODE and isinstance(value, bytes):
                nodes.append(_node(value))
            elif part == _INITIALIZER and isinstance(value, bytes):
                name, constants_of = _tensor(value)
                constants[name] = constants_of
    return nodes, constants


def _node(data: bytes) -> OnnxNode:
    inputs, outputs, op, domain = [], [], "", ""
    attributes: dict[str, bytes] = {}
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == _NODE_ATTRIBUTE:
            name = next((v for k, v in _fields(value[:200]) if k == _ATTRIBUTE_NAME and isinstance(v, bytes)), b"")
            attributes[name.decode()] = value
        elif number == _NODE_INPUT:
            inputs.append(value.decode())
        elif number == _NODE_OUTPUT:
            outputs.append(value.decode())
        elif number == _NODE_OP:
            op = value.decode()
        elif number == _NODE_DOMAIN:
            domain = value.decode()
    return OnnxNode(op, domain, tuple(inputs), tuple(outputs), attributes)


def _tensor(data: bytes) -> tuple[str, npt.NDArray[np.generic]]:
    dims: list[int] = []
    kind, name, raw = 0, "", b""
    for number, value in _fields(data):
        if number == _TENSOR_DIMS and isinstance(value, int):
            dims.append(value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == _TENSOR_NAME and isinstance(value, bytes):
            name = value.decode()
        elif number == _TENSOR_RAW and isinstance(value, bytes):
            raw = value
    if kind not in _TENSOR_TYPES:
        return name, np.empty(0)
    return name, np.frombuffer(raw, dtype=_TENSOR_TYPES[kind]).reshape(dims)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message: whole numbers as such, all else as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise MalformedModelError(f"a field of kind {kind}")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The whole number at ``at``, and where the next one begins."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise MalformedModelError("the file ends in a number")
