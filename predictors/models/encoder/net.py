"""A text encoder with a hazard head: word pieces and encoded columns in, corrections to K hazards out, in one pass.

Texts that occur often in a batch (many answers to one prompt) are encoded once; by an encoder that is left as it is, once and for
all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.encoder.source import EncoderSource
from endcast.predictors.models.network import Recipe

#: Where there is no piece.
NO_PIECE = -1.0
#: Texts that an encoder which does not learn encodes at once.
_AT_ONCE = 64


def clean_pieces(pieces: Float32Array, vocabulary: int) -> Float32Array:
    """Whole numbers of the vocabulary, or ``NO_PIECE``: whatever comes in, missing, between numbers or beyond them."""
    known = np.where(np.isnan(pieces), np.float32(NO_PIECE), pieces)
    cleaned: Float32Array = np.clip(np.rint(known), NO_PIECE, vocabulary - 1).astype(np.float32)
    return cleaned


class TextNet(nn.Module):
    """``inputs`` (n, E + pieces): E encoded columns (none is allowed), then cleaned pieces."""

    def __init__(self, inputs: int, outputs: int, recipe: Recipe, source: EncoderSource, pieces: int) -> None:
        super().__init__()
        self.encoder: Any = source.build()
        self.encoder.config.hidden_dropout_prob = self.encoder.config.attention_probs_dropout_prob = 0.0
        for module in self.encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.first, self.pieces = source.first, pieces
        self._means: dict[bytes, torch.Tensor] | None = (
            None  # of texts, by their pieces, where the encoder does not learn
        )
        self.text = nn.Linear(self.encoder.config.hidden_size, recipe.hidden)
        self.columns = nn.Linear(inputs - pieces, recipe.hidden) if inputs > pieces else None
        self.hidden = nn.Linear(recipe.hidden, recipe.hidden)
        self.head = nn.Linear(recipe.hidden, outputs)
        self.dropout = nn.Dropout(recipe.dropout)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, K)."""
        pieces = x[:, -self.pieces :]
        texts, which = torch.unique(pieces, dim=0, return_inverse=True)
        means = self.encoded(texts) if self._means is None else self._remembered(texts, self._means)
        sums = self.text(means)[which]
        if self.columns is not None:
            sums = sums + self.columns(x[:, : -self.pieces])
        hidden = self.dropout(torch.relu(sums))
        hidden = self.dropout(torch.relu(self.hidden(hidden)))
        corrections: torch.Tensor = self.head(hidden)
        return corrections

    def learned(self) -> None:
        """Its weights change no more by learning, but may be rounded: nothing that is remembered holds."""
        self._means = None

    def _remembered(self, pieces: torch.Tensor, means: dict[bytes, torch.Tensor]) -> torch.Tensor:
        keys = [row.tobytes() for row in pieces.cpu().numpy()]
        new = [i for i, key in enumerate(keys) if key not in means]
        with torch.no_grad():
            for some in (new[i : i + _AT_ONCE] for i in range(0, len(new), _AT_ONCE)):
                means.update(zip((keys[i] for i in some), self.encoded(pieces[some]).float(), strict=True))
        return torch.stack([means[key] for key in keys])

    def encoded(self, pieces: torch.Tensor) -> torch.Tensor:
        """(u, units): the mean over each text's pieces, what stands before every text included."""
        there = torch.cat([torch.ones_like(pieces[:, :1]), (pieces >= 0).to(pieces.dtype)], dim=1)
        used = int((there * torch.arange(1, there.shape[1] + 1, device=there.device)).max())
        there = there[:, :used]
        ids = torch.cat([torch.full_like(pieces[:, :1], self.first), pieces.clamp(min=0)], dim=1)[:, :used].long()
        states = self.encoder(input_ids=ids, attention_mask=there).last_hidden_state
        weight = there[:, :, None].to(states.dtype)
        mean: torch.Tensor = (states * weight).sum(dim=1) / weight.sum(dim=1)
        return mean

    def parameter_groups(self, rate: float, encoder_rate: float) -> list[dict[str, Any]]:
        """What is learned how fast; an encoder at rate 0 is left as it is."""
        own = [p for name, p in self.named_parameters() if not name.startswith("encoder.")]
        if encoder_rate == 0.0:
            self.encoder.requires_grad_(False)
            self._means = {}
            return [{"params": own, "lr": rate}]
        return [{"params": own, "lr": rate}, {"params": list(self.encoder.parameters()), "lr": encoder_rate}]
