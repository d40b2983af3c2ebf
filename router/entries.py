"""What the cluster core carries of a request, wherever it is: six integers, one column of an *entries* array (6, k)."""

from __future__ import annotations

from typing import Any

#: Rows of an entries array: the caller's number for the request, its prompt tokens, the output tokens supposed from its
#: flags, its row in the book of forecasts, the caller's number for its tenant, its own cap on output tokens or ``NO_CAP``.
REQUEST, PROMPT, SUPPOSED, ROW, TENANT, MAX_TOKENS = range(6)
FIELDS = 6

#: Marks a slot, a row or a place that holds nothing.
NOTHING = -1


def read_only(array: Any) -> Any:
    """The same array, through which it cannot be changed."""
    view = array.view()
    view.flags.writeable = False
    return view
