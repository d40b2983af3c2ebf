"""Online linear programming: bid prices for slots and KV over future steps (``docs/olp.md`` has the whole)."""
