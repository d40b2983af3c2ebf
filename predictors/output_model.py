"""The second model of a bundle: reads the output so far and corrects admission curves at landmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.errors import BundleError
from endcast.predictors.bundle import Bundle, Graph, OutputManifest
from endcast.predictors.features.pipeline import LIMIT
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.hazard_graph import load_graph
from endcast.predictors.landmarks import Conditioned, FurtherGrid
from endcast.predictors.output_columns import NAMES, OFFSET_COLUMN, OWNER, PIECE_NAMES, TailScores, tail_grams
from endcast.predictors.text.asked import NOTHING_ASKED, asked_for
from endcast.predictors.text.encoder_files import TOKENIZER
from endcast.predictors.text.output_reader import COLUMNS, OutputReader
from endcast.predictors.text.prompt_text import prompt_text, said_last
from endcast.predictors.text.remembered import Remembered
from endcast.predictors.text.tail_kernel import add_up
from endcast.predictors.text.wordpieces import Wordpieces
from endcast.survival import CurveTable, FloatArray, IntArray
from endcast.types import Request


def output_reader(request: Request) -> OutputReader:
    """A reader of the answer to this request, which knows what its prompt asks for."""
    return OutputReader(asked_for(prompt_text(request)))


class OutputModel:
    """Graph, grid and word tables of the second model."""

    def __init__(self, graph: Graph, manifest: OutputManifest, bundle: Bundle) -> None:
        reads_pieces = len(manifest.columns) > len(NAMES) and TOKENIZER in bundle.encoder
        self._pieces = Wordpieces(bundle.encoder[TOKENIZER]) if reads_pieces else None
        self._names = NAMES if self._pieces is None else (*NAMES, *PIECE_NAMES)
        if tuple(manifest.columns) != self._names or manifest.interval_columns != [OFFSET_COLUMN]:
            raise BundleError(
                "the bundle was made with other output columns than this endcast has", hint="Train it again"
            )
        fine, edges = bundle.admission.grid.fine, graph.grid.edges
        if not np.isin(edges, fine).all() or edges[0] != 0 or edges[-1] != fine[-1]:
            raise BundleError("the bundle's further grid does not lie on its curves' edges", hint="Train it again")
        self.every = manifest.every
        self._grid = FurtherGrid(graph.grid, fine)
        self._graph = load_graph(graph, len(self._names) + len(graph.grid))
        self._scores = TailScores.from_tables(bundle.learned.get(OWNER, {}))
        self._asked = Remembered(lambda kept, _characters: asked_for(kept))
        self._rehearse(bundle.admission.grid)

    def _rehearse(self, grid: IntervalGrid) -> None:
        """One forecast of no use: what has to be compiled is compiled now, not while somebody waits for an answer."""
        reader = OutputReader()
        reader.append("Well,")
        start = np.zeros(1, dtype=np.int64)
        self.curves(grid.curves(grid.base_hazard[None, :]), start, start + 1, [reader])

    def reader(self, request: Request) -> OutputReader:
        """``output_reader``; what a prompt asks for is remembered."""
        text = said_last(request)
        return OutputReader(NOTHING_ASKED if text is None else self._asked(text))

    def curves(
        self,
        admission: CurveTable,
        row: IntArray,
        generated: IntArray,
        readers: Sequence[OutputReader],
    ) -> CurveTable:
        """(n, ·) curves of further tokens. ``row`` (n,) into the admission curves, which count from admission;
        ``generated`` (n,) tokens > 0."""
        base = Conditioned.of(admission, row, generated, self._grid.fine)
        vectors = self._vectors(generated, readers, base.logits(self._grid.at))
        return self._grid.curves(base, self._graph.hazards(vectors))

    def _vectors(self, generated: IntArray, readers: Sequence[OutputReader], admission: FloatArray) -> Float32Array:
        """(n, F), what ``join(output_columns(…))`` gives for these landmarks, made in place, with word pieces if the model
        reads them."""
        texts, values, all_values = len(COLUMNS), len(NAMES), len(self._names)
        out = np.empty((len(readers), all_values + admission.shape[1]), dtype=np.float32)
        for one, reader in zip(out, readers, strict=True):
            one[:texts] = reader.features()
            add_up(one[texts : values - 1], tail_grams(reader), self._scores.table, self._scores.bias)
            if self._pieces is not None:
                one[values:all_values] = self._pieces.tail(reader.tail())
        out[:, values - 1] = np.log1p(generated)
        known = out[:, :values]
        np.minimum(np.maximum(known, -LIMIT, out=known), LIMIT, out=known)
        out[:, all_values:] = admission
        return out


def output_model(bundle: Bundle) -> OutputModel | None:
    """That of a bundle, if it has one."""
    if bundle.output is None or bundle.manifest.output is None:
        return None
    return OutputModel(bundle.output, bundle.manifest.output, bundle)
