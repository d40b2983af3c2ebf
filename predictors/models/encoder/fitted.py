"""A trained text encoder with its hazard head, as it is served: matrices of the encoder with 8 bits, all else float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from endcast.predictors.features.pipeline import split
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models.dense import ENCODED, Encoding
from endcast.predictors.models.encoder.net import TextNet, clean_pieces
from endcast.predictors.models.encoder.nodes import EncoderNodes
from endcast.predictors.models.encoder.weights import Rounded
from endcast.predictors.models.graph import BASE, INPUT, LOGITS, LogitGraph, constant, node, pooled_base
from endcast.predictors.models.harmless import offset_nodes
from endcast.survival import FloatArray

#: Rows whose log-odds are computed at once.
_ROWS = 512


@dataclass(frozen=True, eq=False)
class EncodedHazard:
    """``encoding`` of the columns beside the pieces, ``None`` where there are none; the pieces are the columns ``first_piece``
    and those behind it. ``net`` is on the CPU, rounded."""

    net: TextNet
    encoding: Encoding | None
    first_piece: int
    vocabulary: int
    grid: IntervalGrid
    values: int  #: f
    width: int  #: F
    card: Mapping[str, Any]
    offset: int | None = None

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        base = self._base(features)
        if not len(features):
            return np.empty((0, len(self.grid)))
        corrections = []
        with torch.no_grad():
            for part in np.array_split(features, len(features) // _ROWS + 1):
                corrections.append(self.net(torch.from_numpy(self.inputs(part))).numpy())
        logits: FloatArray = base + np.concatenate(corrections).astype(np.float64)
        return logits

    def inputs(self, features: Float32Array) -> Float32Array:
        """(n, E + pieces) of features (n, F), as the network takes them."""
        return inputs_of(features, self.encoding, self.first_piece, self.net.pieces, self.vocabulary)

    def _base(self, features: Float32Array) -> FloatArray:
        if self.offset is None:
            return self.grid.base_logit[None, :]
        return split(features, self.values, len(self.grid)).intervals[:, :, self.offset].astype(np.float64)

    def graph(self) -> LogitGraph:
        """The encoder's nodes and a few matrix products."""
        encoder = self.net.encoder
        weights = {name: tensor.detach().numpy() for name, tensor in encoder.state_dict().items()}
        config = encoder.config
        build = EncoderNodes(
            weights, heads=config.num_attention_heads, epsilon=config.layer_norm_eps, first=self.net.first
        )
        build.build(INPUT, np.arange(self.first_piece, self.first_piece + self.net.pieces), "text_mean")
        nodes, constants = build.nodes, build.constants
        if self.offset is None:
            constants.append(pooled_base(self.grid.base_logit))
        else:
            own_nodes, own_constants = offset_nodes(self.width, self.values, len(self.grid), self.offset)
            nodes += own_nodes
            constants += own_constants
        self._head(nodes, constants)
        return LogitGraph(tuple(nodes), tuple(constants), self.width, len(self.grid))

    def _head(self, nodes: list[Any], constants: list[Any]) -> None:
        """From the texts' means and the encoded columns to log-odds."""

        def linear(name: str, layer: nn.Linear, x: str) -> str:
            constants.append(constant(f"{name}_weight", layer.weight.detach().numpy().T, np.float32))
            constants.append(constant(f"{name}_bias", layer.bias.detach().numpy(), np.float32))
            nodes.append(node("Gemm", [x, f"{name}_weight", f"{name}_bias"], f"{name}_sum"))
            return f"{name}_sum"

        x = linear("text", self.net.text, "text_mean")
        if self.encoding is not None and self.net.columns is not None:
            own_nodes, own_constants = self.encoding.nodes()
            nodes += own_nodes
            constants += own_constants
            nodes.append(node("Add", [x, linear("columns", self.net.columns, ENCODED)], "both"))
            x = "both"
        nodes.append(node("Relu", [x], "hidden_0"))
        nodes.append(node("Relu", [linear("hidden", self.net.hidden, "hidden_0")], "hidden_1"))
        nodes.append(node("Add", [linear("head", self.net.head, "hidden_1"), BASE], LOGITS))


def inputs_of(
    features: Float32Array, encoding: Encoding | None, first_piece: int, pieces: int, vocabulary: int
) -> Float32Array:
    """(n, E + pieces): encoded columns, then cleaned word pieces."""
    cleaned = clean_pieces(features[:, first_piece : first_piece + pieces], vocabulary)
    return cleaned if encoding is None else np.concatenate([encoding(features), cleaned], axis=1)


def rounded(net: TextNet) -> TextNet:
    """The network on the CPU with the encoder's matrices as 8 bits hold them: what is served is what is judged."""
    net = net.cpu().eval()
    net.learned()
    with torch.no_grad():
        for name, parameter in net.encoder.named_parameters():
            if (
                parameter.dim() == 2
                and name.endswith(".weight")
                and "position" not in name
                and "token_type" not in name
            ):
                axis = 0  # a scale for each word's row; linear layers keep their outputs in rows
                parameter.copy_(torch.from_numpy(Rounded.of(parameter.numpy(), axis).weight))
    return net
