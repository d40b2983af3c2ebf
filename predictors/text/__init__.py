"""Reading text in any language: what a prompt asks for, hashed words, and the output so far."""
