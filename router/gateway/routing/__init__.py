"""The routing core: events in, placements out; and who waits for a place."""
