"""The `gpu` engine: kernels written in Triton, for CUDA and ROCm devices.

`engine` has the functions of an engine, and imports the modules that need Triton only when they are
used. A chunk of shots has a `Blueprint` (in `layout`), which lists its arrays, and a `Sweep` (in
`sweep`), which simulates forwards and backwards in these arrays by launching `kernels`. `device`
has the functions that depend on the card.
"""
