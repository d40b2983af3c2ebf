"""BERT's graph, node by node, from a trained ``BertModel``: word pieces (n, P) in, means over each text (n, units) out.

Same texts are encoded once, and no further than the longest reaches. Devlin et al., 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.encoder.net import NO_PIECE
from endcast.predictors.models.encoder.weights import Rounded
from endcast.predictors.models.graph import constant, node
from endcast.survival import IntArray

Weights = Mapping[str, Float32Array]
#: Log-odds that attention to what is not there is short of.
_NOWHERE = 1e9


class EncoderNodes:
    """Collects ``nodes`` and ``constants``, their names apart from those of other parts of a graph. ``weights`` are the model's by name; its matrices were rounded (``Rounded``)."""

    def __init__(self, weights: Weights, *, heads: int, epsilon: float, first: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._weights, self._heads, self._epsilon, self._first = weights, heads, epsilon, first
        self.vocabulary, self.units = weights["embeddings.word_embeddings.weight"].shape
        self.layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """One node; its output's name here."""
        self.nodes.append(node(op, [_apart(name) for name in inputs], _apart(output), **attributes))
        return output

    def number(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        """A constant's name here."""
        self.constants.append(constant(_apart(name), value, dtype))
        return name

    def build(self, source: str, columns: IntArray, output: str) -> None:
        """From columns of ``source`` (n, F), the word pieces as they come, to ``output`` (n, units)."""
        self.number("columns", columns)
        self.nodes.append(node("Gather", [source, _apart("columns")], _apart("pieces"), axis=1))
        self._clean("pieces")
        self._texts()
        state = self._embedded()
        for layer in range(self.layers):
            state = self._layer(layer, state)
        self.add("Mul", [state, "there_each"], "state_there")
        self.add("ReduceSum", ["state_there", self.number("over_pieces", [1])], "state_sum", keepdims=0)
        self.add("ReduceSum", ["there_each", "over_pieces"], "piece_count", keepdims=0)
        self.add("Div", ["state_sum", "piece_count"], "state_mean")
        self.nodes.append(node("Gather", [_apart("state_mean"), _apart("which_text")], output, axis=0))

    def _clean(self, pieces: str) -> None:
        """``clean_pieces``, and what stands before every text: ``ids`` (n, 1 + P), −1 where nothing is."""
        self.number("no_piece", NO_PIECE, np.float32)
        self.number("last_piece", self.vocabulary - 1, np.float32)
        self.add("IsNaN", [pieces], "piece_missing")
        self.add("Where", ["piece_missing", "no_piece", pieces], "piece_known")
        self.add("Round", ["piece_known"], "piece_whole")
        self.add("Clip", ["piece_whole", "no_piece", "last_piece"], "piece_clean")
        self.add("Cast", ["piece_clean"], "piece_ids", to=onnx.TensorProto.INT64)

    def _texts(self) -> None:
        """Texts that differ, (u, T) ids as far as the longest reaches, and which of them each row is, (n,)."""
        self.nodes.append(
            onnx.helper.make_node(
                "Unique",
                [_apart("piece_ids")],
                [_apart("texts"), "", _apart("which_text")],
                name=_apart("texts"),
                axis=0,
                sorted=1,
            )
        )
        self.add("Shape", ["texts"], "text_count", start=0, end=1)
        self.add("Concat", ["text_count", self.number("one", [1])], "first_shape", axis=0)
        self.add("Expand", [self.number("first_piece", [[self._first]]), "first_shape"], "first_each")
        self.add("Concat", ["first_each", "texts"], "ids_whole", axis=1)
        self.add("GreaterOrEqual", ["ids_whole", self.number("zero", 0)], "is_there")
        self.add("Cast", ["is_there"], "there_count", to=onnx.TensorProto.INT64)
        self.add("ReduceMax", ["there_count"], "any_there", axes=[0], keepdims=0)
        self.add("Shape", ["any_there"], "most_pieces")
        self.add("Squeeze", ["most_pieces"], "most_pieces_0")
        self.add("Range", ["zero", "most_pieces_0", self.number("step", 1)], "places")
        self.add("Add", ["places", "step"], "places_from_1")
        self.add("Mul", ["any_there", "places_from_1"], "reached")
        self.add("ReduceMax", ["reached"], "used", keepdims=1)
        self.number("start", [0])
        self.add("Slice", ["ids_whole", "start", "used", self.number("axis_1", [1])], "ids")
        self.add("Slice", ["there_count", "start", "used", "axis_1"], "there_ids")
        self.add("Cast", ["there_ids"], "there", to=onnx.TensorProto.FLOAT)
        self.add("Unsqueeze", ["there", self.number("axis_2", [2])], "there_each")
        self.add("Max", ["ids", "zero"], "ids_kept")

    def _embedded(self) -> str:
        words = Rounded.of(self._weights["embeddings.word_embeddings.weight"], 0)
        place = self._weights["embeddings.position_embeddings.weight"]
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        self.number("word_numbers", words.numbers, np.int8)
        self.number("word_scale", words.scale[:, None], np.float32)
        self.number("place_rows", place + kind, np.float32)
        self.add("Gather", ["word_numbers", "ids_kept"], "word_rows", axis=0)
        self.add("Cast", ["word_rows"], "word_floats", to=onnx.TensorProto.FLOAT)
        self.add("Gather", ["word_scale", "ids_kept"], "word_scales", axis=0)
        self.add("Mul", ["word_floats", "word_scales"], "words")
        self.add("Slice", ["place_rows", "start", "used", "start"], "place_used")
        self.add("Add", ["words", "place_used"], "embedded")
        # attention goes to what is there: (u, 1, 1, T), 0 or so little that nothing is left
        self.add("Sub", ["there", self.number("one_float", 1.0, np.float32)], "absent")
        self.add("Mul", ["absent", self.number("nowhere", _NOWHERE, np.float32)], "absent_odds")
        self.add("Unsqueeze", ["absent_odds", self.number("axes_1_2", [1, 2])], "absent_each")
        self.number("split_shape", [0, 0, self._heads, self.units // self._heads])
        self.number("joined_shape", [0, 0, self.units])
        self.number("per_root", 1.0 / math.sqrt(self.units // self._heads), np.float32)
        return self._norm("embeddings.LayerNorm", "embedded")

    def _layer(self, layer: int, state: str) -> str:
        name = f"encoder.layer.{layer}"
        query, key, value = (
            self._split(f"{name}.attention.self.{part}", state, [0, 2, 3, 1] if part == "key" else [0, 2, 1, 3])
            for part in ("query", "key", "value")
        )
        odds = self.add("MatMul", [query, key], f"{name}.match")
        scaled = self.add("Mul", [odds, "per_root"], f"{name}.match_scaled")
        masked = self.add("Add", [scaled, "absent_each"], f"{name}.match_there")
        attention = self.add("Softmax", [masked], f"{name}.attention", axis=-1)
        read = self.add("MatMul", [attention, value], f"{name}.read")
        turned = self.add("Transpose", [read], f"{name}.read_turned", perm=[0, 2, 1, 3])
        joined = self.add("Reshape", [turned, "joined_shape"], f"{name}.read_joined")
        out = self._linear(f"{name}.attention.output.dense", joined)
        added = self.add("Add", [out, state], f"{name}.attended")
        state = self._norm(f"{name}.attention.output.LayerNorm", added)
        inner = self._gelu(f"{name}.gelu", self._linear(f"{name}.intermediate.dense", state))
        out = self._linear(f"{name}.output.dense", inner)
        added = self.add("Add", [out, state], f"{name}.summed")
        return self._norm(f"{name}.output.LayerNorm", added)

    def _split(self, name: str, state: str, order: list[int]) -> str:
        each = self._linear(name, state)
        split = self.add("Reshape", [each, "split_shape"], f"{name}.split")
        return self.add("Transpose", [split], f"{name}.turned", perm=order)

    def _linear(self, name: str, state: str) -> str:
        weight = Rounded.of(self._weights[f"{name}.weight"].T, 1)
        self.number(f"{name}.numbers", weight.numbers, np.int8)
        self.number(f"{name}.scale", weight.scale, np.float32)
        self.number(f"{name}.bias", self._weights[f"{name}.bias"], np.float32)
        # not DequantizeLinear: onnxruntime would make one product of it and round what flows in as well
        self.add("Cast", [f"{name}.numbers"], f"{name}.floats", to=onnx.TensorProto.FLOAT)
        self.add("Mul", [f"{name}.floats", f"{name}.scale"], f"{name}.weight")
        product = self.add("MatMul", [state, f"{name}.weight"], f"{name}.product")
        return self.add("Add", [product, f"{name}.bias"], f"{name}.out")

    def _norm(self, name: str, state: str) -> str:
        self.number(f"{name}.scale", self._weights[f"{name}.weight"], np.float32)
        self.number(f"{name}.bias", self._weights[f"{name}.bias"], np.float32)
        inputs = [state, f"{name}.scale", f"{name}.bias"]
        return self.add("LayerNormalization", inputs, f"{name}.out", axis=-1, epsilon=self._epsilon)

    def _gelu(self, name: str, state: str) -> str:
        if name.endswith("layer.0.gelu"):
            self.number("per_root_2", math.sqrt(0.5), np.float32)
            self.number("half", 0.5, np.float32)
        scaled = self.add("Mul", [state, "per_root_2"], f"{name}.scaled")
        error = self.add("Erf", [scaled], f"{name}.erf")
        plus = self.add("Add", [error, "one_float"], f"{name}.plus_1")
        product = self.add("Mul", [state, plus], f"{name}.product")
        return self.add("Mul", [product, "half"], f"{name}.out")


def _apart(name: str) -> str:
    """A name that only this part of a graph has."""
    return f"encoder/{name}"
