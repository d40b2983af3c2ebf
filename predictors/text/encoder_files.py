"""Names of the files of a bundle's text encoder."""

from __future__ import annotations

#: The vocabulary, the graph of scores, and a text with the score that it must get.
TOKENIZER, SCORER, GOLDEN = "tokenizer.json", "encoder.onnx", "encoder_golden.json"
