"""Networks that a model is made by, in place of values on a grid: one a file, see `NETWORKS`.

A network is a `torch.nn.Module`, called with coordinates (..., ndim), which go from -1 to 1 along
the grid's shortest axis and as far along the others as these are longer; it returns values (...,
count), of about the size of 1, one for each of the model's parameters. It is made of the grid's
shape and that count, and its other keyword parameters are keys of `[model.network]`. Where what it
says of a point depends on nothing but this point's coordinates it has `pointwise = True`, and is
called with some of them, (point, ndim); else with all at once, (z, x, 2) or (z, y, x, 3).

What becomes of it in an inversion is in `represented` and in `optimizers.reparametrized`.
"""
