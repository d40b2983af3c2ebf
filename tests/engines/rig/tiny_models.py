"""Tiny models with random weights, a tokenizer and a chat template, made on the spot: ``tiny_models.py FOLDER``.

``dense`` is a Llama, ``experts`` a Qwen3 mixture of experts, whose data-parallel ranks step together. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY, CONTEXT = 1024, 8192
SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<think>", "</think>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main(folder: Path) -> None:
    """Make both models below ``folder``."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    for name, model in (("dense", dense()), ("experts", experts())):
        model.to(torch.float32).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs, learned from Python's own library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:150]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in sources], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=CONTEXT
    )
    made.chat_template = TEMPLATE
    return made


def dense() -> LlamaForCausalLM:
    """Two layers of 64."""
    return LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, **_COMMON))


def experts() -> Qwen3MoeForCausalLM:
    """Two layers of 128, four experts, two at a time."""
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            hidden_size=128,
            intermediate_size=256,
            moe_intermediate_size=128,
            head_dim=64,
            num_experts=4,
            num_experts_per_tok=2,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            **_COMMON,
        )
    )


_COMMON = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
