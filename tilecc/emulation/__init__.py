"""Running a compiled CUDA kernel in the PTX emulator: `tilecc.emulate` (docs/emulator.md)."""
