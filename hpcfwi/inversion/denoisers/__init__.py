"""Denoisers that an input names: one a file, in `registry.DENOISERS`.

A denoiser is a function of images (image, 1, z, x) or (image, 1, z, y, x), with values about
between 0 and 1, and of the strength. What becomes of it in an inversion is in
`optimizers.denoised`.
"""
