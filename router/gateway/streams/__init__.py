"""Streams of engines: cut into events, read, told to the books, relayed."""
