"""
With deepinv: total variation
=============================

Shots as one of deepinv's physics, under its optimisers and priors.

`deepinv <https://deepinv.github.io>`_ solves inverse problems of images. What it asks of a
measurement is a `Physics`: here the traces that a change of the model scatters, an image (1, 1, z, x)
to data (1, shot, receiver, time). FISTA (Beck and Teboulle 2009) is its, and so is the prior: total
variation, for bodies with edges.
"""

import deepinv
import matplotlib.pyplot as plt
import numpy as np
import torch

import hpcfwi
from hpcfwi.interop.deepinv import as_physics, distribute
from hpcfwi.model import Grid, Model
from hpcfwi.operators import Shots
from hpcfwi.operators import distribute as distribute_shots
from hpcfwi.survey import Survey
from hpcfwi.wave.wavelet import ricker
