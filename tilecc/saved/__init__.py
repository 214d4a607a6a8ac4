"""Compiled kernels as files: `kernel.save(path)` writes one, `tilecc.load(path)` reads it.

Loading needs numpy, ml_dtypes, apache-tvm-ffi and apache-tvm-ffi-orcjit, and neither TVM, sympy,
networkx nor a C compiler. docs/shipping.md describes the file.
"""
