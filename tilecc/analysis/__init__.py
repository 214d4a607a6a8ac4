"""Analyses that passes share: what a program means, without changing it."""
