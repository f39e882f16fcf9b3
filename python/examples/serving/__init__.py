"""An example server: rows of a store and a dense layer, behind HTTP (ASGI) and behind Triton. README.md says how to run it."""
