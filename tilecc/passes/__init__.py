"""Passes: each a function from IR to IR that keeps the meaning; they know nothing of each other."""
