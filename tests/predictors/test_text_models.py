"""The text encoder: what it reads, that its graph is the model's, and that a folder of weights is used or refused."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from endcast import Request
from endcast.datasets.synth import SynthLog
from endcast.datasets.trace import Trace
from endcast.errors import BundleError, TrainingError
from endcast.predictors.bundle import read_bundle
from endcast.predictors.features.encoder_score import EncoderScore
from endcast.predictors.features.pipeline import join
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.hazard_graph import HazardGraph, open_session
from endcast.predictors.models.encoder.fitted import EncodedHazard, rounded
from endcast.predictors.models.encoder.net import TextNet, clean_pieces
from endcast.predictors.models.encoder.scorer import expected_tokens, score_graph
from endcast.predictors.models.encoder.source import encoder_source
from endcast.predictors.models.encoder.weights import Rounded
from endcast.predictors.models.graph import finish
from endcast.predictors.models.network import Lesson, Recipe, Trainer
from endcast.predictors.models.text import reading_trainer
from endcast.predictors.onnx_forecaster import load_forecaster
from endcast.predictors.output_columns import (
    NAMES,
    OWNER,
    PIECE_NAMES,
    TailScores,
    output_columns,
    text_row,
    with_pieces,
)
from endcast.predictors.output_model import output_model
from endcast.predictors.text.encoder_files import GOLDEN, SCORER, TOKENIZER
from endcast.predictors.text.text_encoder import TextEncoder
from endcast.predictors.text.wordpieces import FROM_BEGINNING, PROMPT_PIECES, Wordpieces
from endcast.survival import FloatArray
from endcast.training import encoder_part
from endcast.training.train import Settings, train

WORDS = "alpha beta gamma delta epsilon zeta eta theta"
SOURCE = encoder_source(None, [WORDS] * 3).sized(1, 8)
LENGTHS = np.random.default_rng(0).geometric(0.01, 2000)
GRID = IntervalGrid.fit(LENGTHS, np.ones(2000, dtype=bool), 12)


@pytest.fixture(scope="module")
def model() -> EncodedHazard:
    """An encoder whose head says something: its weights are drawn, not trained."""
    torch.manual_seed(0)
    net = TextNet(PROMPT_PIECES, len(GRID), Recipe(hidden=8), SOURCE, PROMPT_PIECES)
    torch.nn.init.normal_(net.head.weight)
    return EncodedHazard(rounded(net), None, 0, SOURCE.vocabulary, GRID, PROMPT_PIECES, PROMPT_PIECES, {})


@pytest.fixture(scope="module")
def graph(model: EncodedHazard) -> HazardGraph:
    return HazardGraph(finish(model.graph(), 1.0))


def native(model: EncodedHazard, pieces: Float32Array) -> FloatArray:
    hazards: FloatArray = 1.0 / (1.0 + np.exp(-model.logits(pieces)))
    return hazards


PIECE = st.just(math.nan) | st.integers(-3, SOURCE.vocabulary + 3) | st.sampled_from([0.49, 2.51, 1e6, -1e6])
TEXT = st.lists(PIECE, max_size=PROMPT_PIECES).map(
    lambda pieces: [*pieces, *[math.nan] * (PROMPT_PIECES - len(pieces))]
)


@settings(max_examples=40)
@given(st.lists(TEXT, min_size=1, max_size=6))
def test_the_graph_is_the_model_whatever_the_pieces(
    model: EncodedHazard, graph: HazardGraph, texts: list[list[float]]
) -> None:
    """Missing, in between, beyond the vocabulary, the same twice: as transformers' own model has it, row by row."""
    pieces = np.array([*texts, texts[0]], dtype=np.float32)
    hazards = graph.hazards(pieces)
    np.testing.assert_allclose(hazards, native(model, pieces), atol=2e-6)
    np.testing.assert_allclose(graph.hazards(pieces[-1:])[0], hazards[0], atol=1e-6)


def test_an_encoder_that_is_left_as_it_is_encodes_each_text_once() -> None:
    """Only the head learns, and what is remembered is what the encoder gives."""
    rng = np.random.default_rng(0)
    inputs = clean_pieces(rng.integers(4, SOURCE.vocabulary, (30, PROMPT_PIECES)).astype(np.float32), 99)
    hazard = (rng.random((30, len(GRID))) < 0.3).astype(np.float32)
    lesson = Lesson(inputs, np.full((1, len(GRID)), -1.0, np.float32), hazard, np.ones_like(hazard))
    plain = Trainer(Recipe(hidden=8, epochs=3, batch=10), 0, 1, lambda text: None, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        encoded: list[int] = []
        encode = TextNet.encoded

        def counting(net: TextNet, pieces: torch.Tensor) -> torch.Tensor:
            encoded.append(len(pieces))
            return encode(net, pieces)

        patch.setattr(TextNet, "encoded", counting)
        net, _, _ = reading_trainer(plain, SOURCE, PROMPT_PIECES, 0.0).train(lesson, None, 3)
    assert sum(encoded) == 30 and isinstance(net, TextNet)
    remembered = net(torch.from_numpy(inputs)).detach().numpy()
    net.learned()
    np.testing.assert_allclose(net.eval()(torch.from_numpy(inputs)).detach().numpy(), remembered, atol=1e-5)
    torch.manual_seed(0)
    begun = SOURCE.build().state_dict()
    assert all(torch.equal(weight, begun[name]) for name, weight in net.encoder.state_dict().items())
    assert float(net.head.weight.detach().abs().max()) > 0.0


def test_texts_of_other_words_get_other_hazards(graph: HazardGraph) -> None:
    cut = Wordpieces(SOURCE.tokenizer)
    pieces = np.stack([cut.prompt(text) for text in ("alpha beta", "beta alpha", "alpha beta gamma", "")])
    assert len(np.unique(graph.hazards(pieces).round(5), axis=0)) == 4


def test_scores_are_logs_of_the_tokens_that_the_hazards_expect(model: EncodedHazard) -> None:
    cut = Wordpieces(SOURCE.tokenizer)
    pieces = np.stack([cut.prompt(text) for text in ("alpha", "beta gamma", "zeta " * 200)])
    (scores,) = open_session(score_graph(model)).run(["score"], {"features": pieces})
    np.testing.assert_allclose(scores[:, 0], np.log(expected_tokens(native(model, pieces), GRID.edges)), atol=1e-5)


def test_expected_tokens_of_one_hazard_are_known() -> None:
    """Edges at each token, chance 1/2 of an end at each: 0.5 + Σ 2^-k in the middle of each token, that is 1.5."""
    edges = np.arange(41)
    assert expected_tokens(np.full((1, 40), 0.5), edges)[0] == pytest.approx(1.5, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1]))
def test_rounding_keeps_each_weight_within_half_a_step(seed: int, axis: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(5, 7)).astype(np.float32)
    weight[2] = 0.0
    found = Rounded.of(weight, axis)
    step = np.expand_dims(found.scale, 1 - axis)
    assert found.numbers.dtype == np.int8 and (np.abs(found.weight - weight) <= step * 0.501).all()
    np.testing.assert_array_equal(Rounded.of(found.weight, axis).numbers, found.numbers)


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    cut = Wordpieces(SOURCE.tokenizer)
    row = cut.prompt("alpha " * 500 + "beta " * 500)
    alpha, beta, end = cut.prompt("alpha")[0], cut.prompt("beta")[0], cut.prompt("")[0]
    assert row.tolist() == [alpha] * FROM_BEGINNING + [beta] * (PROMPT_PIECES - FROM_BEGINNING - 1) + [end]
    assert cut.tail("alpha " * 500 + "beta " * 500)[-2] == beta


@pytest.mark.parametrize("text", ["", "\ud800", "\x00", "用中文写", "alpha" * 3000])
def test_any_text_is_cut(text: str) -> None:
    row = Wordpieces(SOURCE.tokenizer).prompt(text)
    assert row.shape == (PROMPT_PIECES,) and not np.isnan(row[0]) and not np.isinf(row).any()


def test_pieces_are_cleaned() -> None:
    cleaned = clean_pieces(np.array([[np.nan, -7.0, 2.4, 99.0]], np.float32), 10)
    assert cleaned.tolist() == [[-1.0, -1.0, 2.0, 9.0]]


@pytest.mark.parametrize("file", [b"", b"{}", b"\xff", b'{"version": "1.0"}'])
def test_a_damaged_vocabulary_is_refused(file: bytes) -> None:
    with pytest.raises(BundleError):
        Wordpieces(file)


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BundleError, match="tokenizers is not installed") as error:
        Wordpieces(SOURCE.tokenizer)
    assert error.value.hint is not None and "endcast[wordpieces]" in error.value.hint


def test_each_prompt_is_scored_once(model: EncodedHazard, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder({TOKENIZER: SOURCE.tokenizer, SCORER: score_graph(model)}, check=False)
    asked: list[str] = []
    score = encoder.score

    def asking(text: str) -> float:
        asked.append(text)
        return score(text)

    monkeypatch.setattr(encoder, "score", asking)
    group = EncoderScore(GRID)
    requests = [Request(request_id=str(i), prompt=("alpha", "beta")[i % 2]) for i in range(10)]
    assert np.isnan(group.collect(requests)).all()
    group.set_encoder(encoder)
    found = group.collect([*requests, Request(request_id="none")])
    assert asked == ["alpha", "beta"] and np.isnan(found[-1, 0]) and len(np.unique(found[:10])) <= 2
    np.testing.assert_allclose(found[0, 0], score("alpha"), atol=0.1001)


def test_an_encoder_whose_graph_was_swapped_is_refused(model: EncodedHazard) -> None:
    files = {TOKENIZER: SOURCE.tokenizer, SCORER: score_graph(model), GOLDEN: b'{"text": "alpha", "score": 1.0}'}
    with pytest.raises(BundleError, match="off its golden score"):
        TextEncoder(files)
    with pytest.raises(BundleError, match="does not run"):
        TextEncoder({**files, GOLDEN: b"{}"})


# ---- weights from a folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder as ``save_pretrained`` writes it, weights drawn."""
    torch.manual_seed(5)
    encoder = SOURCE.build()
    out = tmp_path_factory.mktemp("encoder")
    encoder.config.save_pretrained(out)
    save_file({f"bert.{name}": weight for name, weight in encoder.state_dict().items()}, out / "model.safetensors")
    (out / "tokenizer.json").write_bytes(SOURCE.tokenizer)
    return out


def test_a_folder_s_weights_are_where_training_begins(folder: Path) -> None:
    source = encoder_source(folder, [])
    torch.manual_seed(5)
    wanted, found = SOURCE.build().state_dict(), source.build().state_dict()
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert source.card["layers"] == 1 and source.card["weights"].startswith("sha256:")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_something_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    for file in folder.iterdir():
        if file.name != name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(TrainingError, match=f"holds no {name}"):
        encoder_source(tmp_path, [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"max_position_embeddings": 8}, "too few pieces"),
        ({"vocab_size": 3}, "more pieces than the encoder"),
    ],
)
def test_an_encoder_of_another_kind_is_refused(
    folder: Path, tmp_path: Path, change: Mapping[str, object], why: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(TrainingError, match=why):
        encoder_source(tmp_path, [])


def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file({"embeddings.other": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(TrainingError, match="does not hold the weights"):
        encoder_source(tmp_path, []).build()
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(TrainingError, match="does not hold the weights"):
        encoder_source(tmp_path, []).build()


def test_a_score_of_prompts_is_one_feature_of_the_default_model(
    small_log: SynthLog, folder: Path, tmp_path: Path
) -> None:
    """With ``encoder`` set: vocabulary and graph lie in the bundle, forecasts need the folder no more, two runs give one
    bundle."""
    some = small_log.trace.take(np.arange(0, len(small_log.trace), 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("endcast.training.encoder_part.LOADED", Recipe(hidden=8, epochs=1, batch=64))
        wanted = Settings(encoder=folder, intervals=12, read_outputs=False, options={"rounds": 5}, device="cpu")
        one, other = (train(some, wanted, tmp_path / name) for name in ("one", "other"))
    assert one.id == other.id
    assert "encoder_score" in one.manifest.feature_groups and "prompt_pieces" not in one.manifest.feature_groups
    bundle = read_bundle(one.path)
    assert set(bundle.encoder) == {TOKENIZER, SCORER, GOLDEN}
    forecaster = load_forecaster(one.path)
    for prompt in ("Write a list", None, "\ud800"):
        assert forecaster.open(Request(request_id="a", prompt=prompt)).forecast().expected_remaining > 0
    (one.path / SCORER).unlink()
    with pytest.raises(BundleError, match=SCORER):
        load_forecaster(one.path)


def test_scores_in_training_are_by_encoders_that_had_not_read_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the training in the encoder's place: what taught it is never what it scores, and all prompts are scored."""
    prompts = 40
    pieces = np.arange(prompts, dtype=np.float32)[:, None].repeat(PROMPT_PIECES, axis=1)
    hazard = np.full((prompts, len(GRID)), 0.1, dtype=np.float32)
    told = encoder_part._Prompts(pieces, hazard, np.ones_like(hazard), GRID)
    taught: list[int] = []

    def score(lesson: Lesson, asked: Float32Array) -> FloatArray:
        assert not set(lesson.inputs[:, 0]) & set(asked[:, 0])
        taught.append(len(lesson))
        return asked[:, 0].astype(np.float64)

    monkeypatch.setattr(encoder_part, "_model", lambda net, prompts, source: net)
    monkeypatch.setattr(encoder_part, "_scored", score)
    trainer = Trainer(Recipe(epochs=9), 0, 1, lambda text: None)
    monkeypatch.setattr(
        Trainer, "train", lambda self, lesson, held_out, epochs: (lesson, 4 if held_out else epochs, [])
    )
    scores, epochs = encoder_part._out_of_fold(told, np.arange(prompts), SOURCE, trainer, 0)
    assert scores.tolist() == list(range(prompts)) and taught == [30] * 4 and epochs == 4


def test_the_model_that_reads_outputs_reads_their_tails(small_log: SynthLog, tmp_path: Path) -> None:
    """In serving as in training: what the graph is given is what ``with_pieces`` makes of the same texts."""
    some = small_log.trace.take(np.arange(0, len(small_log.trace), 3))
    options = {"epochs": 1, "hidden": 16, "learning_rate": 0.01, "batch": 64, "encoder_layers": 1, "encoder_units": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("endcast.predictors.models.harmless.DOUBT", -math.inf)
        made = train(some, Settings(model="text", intervals=12, options=options, device="cpu"), tmp_path / "bundle")
    assert made.manifest.output is not None and made.manifest.output.columns == [*NAMES, *PIECE_NAMES]
    bundle = read_bundle(made.path)
    model = output_model(bundle)
    assert model is not None
    readers = [model.reader(Request(request_id="a", prompt="Write")) for _ in range(2)]
    for reader, written in zip(readers, ("Well, first of all", "1. A list.\n2. And an end. \ud800"), strict=True):
        reader.append(written)
    generated, base = np.array([7, 9]), np.zeros((2, len(model._grid.intervals)))
    cut, scores = Wordpieces(bundle.encoder[TOKENIZER]), TailScores.from_tables(bundle.learned[OWNER])
    text = np.stack([text_row(reader, scores) for reader in readers])
    pieces = np.stack([cut.tail(reader.tail()) for reader in readers])
    wanted = join(with_pieces(output_columns(text, generated, base), pieces))
    np.testing.assert_allclose(model._vectors(generated, readers, base), wanted, atol=1e-6)
    spelled = wanted.copy()
    spelled[:, len(NAMES)] = 5.0
    graph = HazardGraph(made.path.joinpath("output_model.onnx").read_bytes())
    assert np.abs(graph.hazards(spelled) - graph.hazards(wanted)).max() > 1e-6


def test_a_log_without_texts_is_refused(small_log: SynthLog, tmp_path: Path) -> None:
    table = small_log.trace.table
    for name in ("prompt", "messages"):
        place, field = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(place, field, pa.nulls(len(table), field.type))
    with pytest.raises(TrainingError, match="no text to be read"):
        train(Trace(table), Settings(model="text", read_outputs=False, device="cpu"), tmp_path / "bundle")
