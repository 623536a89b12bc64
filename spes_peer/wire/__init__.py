"""Messages as bytes: generated protobuf code, and the two files that convert and frame it.

The sources are in `proto/`; `make proto` generates, and a test fails when the two differ.
"""
