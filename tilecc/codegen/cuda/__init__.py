"""CUDA code generation: fragments in registers, tiles in shared memory, tensor cores or FMAs."""
