"""Ids of streams. An id names the process that holds the stream, where there are several, and carries a code that only that
process can make: so it knows an id that it gave from one that it never did, without remembering any."""

from __future__ import annotations

import hmac
import itertools
import re
import secrets
from hashlib import blake2b

_NAME = re.compile(r"s-(?:p(?P<owner>[0-9]{1,10})-)?(?P<number>[0-9a-f]{1,16})-(?P<code>[0-9a-f]{24})")


class StreamNames:
    """Gives ids for one process; ``owner`` is its process id, where others may be asked for its streams."""

    def __init__(self, owner: int | None = None) -> None:
        self._head = "s-" if owner is None else f"s-p{owner}-"
        self._secret = secrets.token_bytes(32)
        self._numbers = itertools.count(1)

    def new(self) -> str:
        """One that was never given."""
        number = f"{next(self._numbers):x}"
        return f"{self._head}{number}-{self._code(number)}"

    def gave(self, name: str) -> bool:
        """Whether this process ever gave it."""
        found = _NAME.fullmatch(name)
        return found is not None and hmac.compare_digest(found["code"], self._code(found["number"]))

    def _code(self, number: str) -> str:
        return blake2b(number.encode(), key=self._secret, digest_size=12).hexdigest()


def owner_of(name: str) -> int | None:
    """The process that an id names, if it names one."""
    found = _NAME.fullmatch(name)
    return None if found is None or found["owner"] is None else int(found["owner"])
