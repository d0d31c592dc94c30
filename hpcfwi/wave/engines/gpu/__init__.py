"""The `gpu` engine: kernels written in Triton, for CUDA and ROCm devices.

`engine` has the functions of an engine, and imports what needs Triton only when it is used. A batch
of shots has a `Blueprint`, which lists its arrays (`layout`), and a `Sweep`, which goes forwards
and backwards in them and launches `kernels` (`sweep`). `device` has what depends on the card.
"""
