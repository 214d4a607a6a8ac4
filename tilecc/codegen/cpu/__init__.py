"""CPU kernels: tile operations grouped into loop nests, lanes along rows or along the last axis."""
