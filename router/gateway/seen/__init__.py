"""What is told of a router at work: access log, metrics, live page."""
