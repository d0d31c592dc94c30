"""The shortest input file."""

MINIMAL = """
[model]
file = "models/true.h5"
initial = { smooth = 200.0 }

[survey]
sources = { count = 4, depth = 25.0 }
receivers = { count = 8, depth = 25.0 }
wavelet = { kind = "ricker", frequency = 5.0, delay = 0.25 }
dt = 0.002
duration = 1

[inversion]
epochs = 3
batch = 2
optimizer = { name = "adam", lr = 25 }

[output]
directory = "runs/minimal"
"""
