"""Rewriting of graph IR as terms: the term table, the rules, the engine, lifting and lowering."""
