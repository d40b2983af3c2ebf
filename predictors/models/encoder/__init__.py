"""Text encoders of BERT's kind: loaded or made small, trained with a hazard head, exported with 8-bit weights."""
