"""The canonical trace: one row a request, as Parquet with a versioned schema.

Every reader yields record batches of ``SCHEMA``; whatever a log does not tell is null, never zero.
"""

from __future__ import annotations

import pyarrow as pa

#: Raised when a column changes its meaning; a file of a higher version is refused.
SCHEMA_VERSION = 1
VERSION_KEY = b"endcast.trace.version"
#: Where a trace file keeps the ``ReadReport`` of the log that it was made from, as JSON.
SOURCE_KEY = b"endcast.trace.source"

SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_ns", pa.int64()),  # nanoseconds on the log's clock (Unix epoch where it tells one)
        pa.field("finished_ns", pa.int64()),  # same clock
        pa.field("prompt_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64(), nullable=False),  # as the engine's usage counts them
        pa.field("end", pa.string(), nullable=False),  # an EndReason
        pa.field("max_tokens", pa.int64()),
        pa.field("context_limit", pa.int64()),
        pa.field("model", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("session", pa.string()),
        pa.field("prefix_blocks", pa.list_(pa.int64())),
        pa.field("prompt", pa.string()),
        pa.field("messages", pa.string()),  # JSON list of chat messages
        pa.field("output", pa.string()),
        pa.field("parameters", pa.string()),  # JSON object of sampling parameters
        pa.field("attributes", pa.string()),  # JSON object, anything else
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()},
)
