"""Which headers pass, each way. Facts about engines' own headers are here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable

from multidict import CIMultiDict, CIMultiDictProxy

#: Pins a data-parallel rank. The router owns placement: a client's own is not passed on.
RANK = "X-data-parallel-rank"
#: Becomes part of the engine's response id, so it must be unique: the router sends one of its own.
REQUEST_ID = "X-Request-Id"

_NONE: frozenset[str] = frozenset()
#: Meant for the next hop only, or set anew for it.
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "content-length", "expect"),
    )
)
_NOT_UP = _HOP | {"host", "x-request-id", "x-data-parallel-rank", "content-encoding"}


def for_engine(
    headers: CIMultiDictProxy[str],
    *,
    request_id: str,
    rank: int | None,
    engine_key: str | None,
    drop: Iterable[str] = (),
) -> CIMultiDict[str]:
    """A client's headers as an engine gets them; the body has been decompressed. ``drop``: further names, lower case."""
    named = _named(headers)
    dropped = _NOT_UP | named | set(drop) if named or drop else _NOT_UP
    spelled: dict[str, str] = {}  # the HTTP client takes names in other letters for other names, the last of which wins
    kept = CIMultiDict(
        [
            (spelled.setdefault(lower, name), value)
            for name, value in headers.items()
            if (lower := name.lower()) not in dropped
        ]
    )
    kept[REQUEST_ID] = request_id
    if rank is not None:
        kept[RANK] = str(rank)
    if engine_key is not None:
        kept["Authorization"] = f"Bearer {engine_key}"
    return kept


def for_client(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """An engine's headers as the client gets them."""
    named = _named(headers)
    dropped = _HOP | named if named else _HOP
    return CIMultiDict([(name, value) for name, value in headers.items() if name.lower() not in dropped])


def _named(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """Names that ``Connection`` declares to be for one hop."""
    told = headers.get("Connection")
    if told is None or told in ("keep-alive", "close"):
        return _NONE
    return frozenset(part.strip().lower() for part in told.split(","))
