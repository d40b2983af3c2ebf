"""The router in front of real engines: an OpenAI-compatible gateway around the cluster core (``docs/gateway.md``)."""
