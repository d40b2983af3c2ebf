"""Live pages: one look, one script of helpers and one policy of what a browser may load, for all of them."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable


def assembled(template: Traversable, script: Traversable, style: Traversable | None = None) -> tuple[str, str]:
    """A page that loads nothing, and the content security policy that says so.

    ``template`` has ``{{ style }}`` and ``{{ script }}``: the shared style and helpers go in front of the page's own.
    """
    styles = _shared("shared.css") + ("" if style is None else style.read_text(encoding="utf-8"))
    scripts = _shared("shared.js") + script.read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src '{_digest(styles)}'; "
        f"script-src '{_digest(scripts)}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = template.read_text(encoding="utf-8")
    return text.replace("{{ style }}", styles).replace("{{ script }}", scripts), policy


def _shared(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
