"""API keys: who may ask for forecasts, and who may change what is served.

A key is sent as ``Authorization: Bearer KEY`` or ``X-Api-Key: KEY``. Only digests are kept, each call is compared with all
of them in constant time, and neither answers nor logs ever hold a key; logs name the caller by the key's name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from endcast.errors import EndcastError, InputError
from endcast.serving.api.problems import forbidden, unauthenticated
from endcast.serving.context import Access, Guard
from endcast.serving.operations.settings import Settings

#: Where a guard leaves the caller's name for the log: a key of the ASGI scope.
CALLER = "endcast.caller"
_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Key:
    """One key: the name that logs show, the SHA-256 of the key, and whether it opens admin calls."""

    name: str
    digest: bytes
    admin: bool


def keys_of(settings: Settings) -> tuple[Key, ...]:
    """All keys, from the settings and their files; ``EndcastError`` says which one is malformed, not what it is."""
    kinds = (
        ("api_keys", settings.api_keys, settings.api_keys_file, False),
        ("admin_keys", settings.admin_keys, settings.admin_keys_file, True),
    )
    keys: list[Key] = []
    for field, values, file, admin in kinds:
        named = "admin" if admin else "key"
        texts = [*((f"{field}[{i}]", text) for i, text in enumerate(values)), *(_of_file(file) if file else ())]
        if file is not None and len(texts) == len(values):
            raise EndcastError(f"{file} holds no key", hint=f"Write one a line, or leave {field}_file out")
        keys += [_key(where, text, f"{named}-{i}", admin) for i, (where, text) in enumerate(texts, 1)]
    _check_distinct(keys)
    return tuple(keys)


def _of_file(file: Path) -> Iterator[tuple[str, str]]:
    """Each key of a file and where it stands; ``#`` begins a comment line."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise EndcastError(f"cannot read the keys in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EndcastError(f"cannot read the keys in {file}: keys are ASCII") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{file} line {number}", line.strip()


def _key(where: str, text: str, default_name: str, admin: bool) -> Key:
    name, colon, secret = text.rpartition(":")
    if _KEY.fullmatch(secret) is None:
        raise InputError(
            where,
            "must be KEY or NAME:KEY, the key 16 to 256 letters, digits and ._~+/=-",
            hint="openssl rand -hex 24 makes one",
        )
    if colon and _NAME.fullmatch(name) is None:
        raise InputError(where, "must have a name of 1 to 64 letters, digits and ._- before the colon")
    return Key(name or default_name, _digest(secret), admin)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _check_distinct(keys: Iterable[Key]) -> None:
    """The same key twice would make its rights depend on their order."""
    seen: dict[bytes, str] = {}
    for key in keys:
        if key.digest in seen:
            raise EndcastError(
                f"the keys named {seen[key.digest]} and {key.name} are the same", hint="Give each a key of its own"
            )
        seen[key.digest] = key.name


def key_guard(settings: Settings) -> Guard:
    """Refuses calls without a fitting key: 401 where there is none or an unknown one, 403 where it is not enough.

    Where no key of a kind is set, that kind of call is open to all, but for one thing: admin calls are never open to
    other machines, nor to those who hold a forecast key only.
    """
    keys = keys_of(settings)
    asks_keys = any(not key.admin for key in keys)
    open_admin = not keys and is_loopback(settings.host)

    def guard(request: Request, access: Access) -> None:
        if access is Access.OPEN or (access is Access.ADMIN and open_admin):
            return
        key = _found(keys, _presented(request))
        if key is not None:
            request.scope[CALLER] = key.name
        if access is Access.CALL:
            if asks_keys and key is None:
                raise unauthenticated()
        elif key is None and keys:
            raise unauthenticated()
        elif key is None or not key.admin:
            raise forbidden()

    return guard


def _presented(request: Request) -> str | None:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.headers.get("x-api-key")


def _found(keys: tuple[Key, ...], secret: str | None) -> Key | None:
    """The key that was presented; every one is compared, so that the time taken tells nothing."""
    if secret is None:
        return None
    digest = _digest(secret)
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
