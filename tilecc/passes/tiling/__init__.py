"""How the `tile` pass works: which axes are tiled, the loops over a streamed axis, the bodies."""
