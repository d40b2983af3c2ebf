"""Where an encoder comes from: a local folder in the layout of ``transformers``, or small and random, for the vocabulary at hand.

Nothing is ever downloaded. Only BERT's architecture is known (MiniLM, E5, BGE, GTE small and others have it): its graph is
written here node by node.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from endcast.errors import TrainingError
from endcast.predictors.text.wordpieces import PROMPT_PIECES, TAIL_PIECES, Wordpieces

if TYPE_CHECKING:
    from transformers import BertModel

#: What a folder must hold.
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
#: Size of an encoder that is made: layers, units, heads.
LAYERS, UNITS, HEADS = 2, 64, 2
#: Words of the log's prompts in a vocabulary that is made, the most frequent ones; how often one must occur.
MOST_WORDS, LEAST_OFTEN = 4000, 3
_WORD = re.compile(r"\w+|[^\w\s]")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class EncoderSource:
    """``folder`` of trained weights, or ``None``: random ones. ``vocabulary``: pieces that the encoder knows, ``first`` the
    one that stands before every text."""

    folder: Path | None
    tokenizer: bytes
    vocabulary: int
    first: int

    layers: int = LAYERS
    units: int = UNITS

    def sized(self, layers: int, units: int) -> EncoderSource:
        """So many layers and (even) units, where it is made here; loaded weights have their own."""
        return replace(self, layers=max(layers, 1), units=max(units // HEADS, 1) * HEADS)

    @property
    def card(self) -> dict[str, Any]:
        """What a manifest says of it."""
        if self.folder is None:
            return {"weights": "random", "layers": self.layers, "units": self.units}
        config = _config(self.folder)
        digest = hashlib.sha256((self.folder / WEIGHTS).read_bytes()).hexdigest()
        return {"weights": f"sha256:{digest}", "layers": config["num_hidden_layers"], "units": config["hidden_size"]}

    def build(self) -> BertModel:
        """The encoder as it is before training; random weights from torch's own generator."""
        from transformers import BertConfig, BertModel

        if self.folder is not None:
            return _loaded(self.folder)
        config = BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.units,
            num_hidden_layers=self.layers,
            num_attention_heads=HEADS,
            intermediate_size=2 * self.units,
            max_position_embeddings=1 + max(PROMPT_PIECES, TAIL_PIECES),
            type_vocab_size=1,
        )
        config._attn_implementation = "eager"
        return BertModel(config, add_pooling_layer=False)


def _loaded(folder: Path) -> BertModel:
    """The folder's encoder, all of its weights in place."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    config = BertConfig(**_config(folder))
    config._attn_implementation = "eager"
    model = BertModel(config, add_pooling_layer=False)
    try:
        weights = {name.removeprefix("bert."): weight for name, weight in load_file(folder / WEIGHTS).items()}
        model.load_state_dict({name: weights[name] for name in model.state_dict()})
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise TrainingError(
            f"{folder / WEIGHTS} does not hold the weights of {CONFIG}: {error!s:.100}", hint="Copy the folder anew"
        ) from None
    return model


def encoder_source(folder: Path | None, prompts: Iterable[str]) -> EncoderSource:
    """That of a folder, or a random one with a vocabulary of these prompts' words. ``TrainingError`` says what a folder
    lacks."""
    if folder is None:
        file = made_tokenizer(prompts)
        pieces = Wordpieces(file)
        return EncoderSource(None, file, pieces.size, pieces.first)
    missing = [name for name in (CONFIG, WEIGHTS, TOKENIZER) if not (folder / name).is_file()]
    if missing:
        raise TrainingError(
            f"{folder} holds no {' and no '.join(missing)}",
            hint="An encoder is a folder as transformers' save_pretrained writes it, with its tokenizer",
        )
    config = _config(folder)
    wanted = {"model_type": "bert", "hidden_act": "gelu"}
    for key, value in wanted.items():
        if config.get(key) != value:
            raise TrainingError(f"{folder / CONFIG}: {key} is {config.get(key)!r:.40}, and only {value} is known")
    if config["max_position_embeddings"] <= max(PROMPT_PIECES, TAIL_PIECES):
        raise TrainingError(f"{folder / CONFIG}: the encoder reads too few pieces of a text")
    file = (folder / TOKENIZER).read_bytes()
    pieces = Wordpieces(file)
    if pieces.size > config["vocab_size"]:
        raise TrainingError(f"{folder / TOKENIZER} knows more pieces than the encoder")
    return EncoderSource(folder, file, int(config["vocab_size"]), pieces.first)


def made_tokenizer(prompts: Iterable[str]) -> bytes:
    """``tokenizer.json`` of word pieces: the most frequent words (in so many prompts at least), and all characters met."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    counts: Counter[str] = Counter()
    normalizer = BertNormalizer()
    for prompt in prompts:
        text = normalizer.normalize_str(prompt.encode("utf-8", "replace").decode())
        counts.update(set(_WORD.findall(text)))
    words = sorted((w for w, n in counts.items() if n >= LEAST_OFTEN), key=lambda w: (-counts[w], w))[:MOST_WORDS]
    letters = sorted({letter for word in counts for letter in word})[:MOST_WORDS]
    pieces = dict.fromkeys([*_SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(piece, vocabulary[piece]) for piece in ("[CLS]", "[SEP]")]
    )
    made: str = tokenizer.to_str()
    return made.encode()


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
    except ValueError as error:
        raise TrainingError(f"{folder / CONFIG} is damaged: {error}") from None
    return config
