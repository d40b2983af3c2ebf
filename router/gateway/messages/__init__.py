"""Requests and answers as bytes and headers: what is read of them, what passes, what the router says itself."""
