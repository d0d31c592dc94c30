"""hpcfwi: seismic full-waveform inversion as an HPC batch application.

The package's layers, from the top: `cli`, then `inversion`, then `operators`, then `datasets`,
then `wave`, `storage` and `report`, then `parallel`, then the vocabulary that all of them share:
`model`, `survey`, `config` and `errors`. Imports go downwards only.
"""

__version__ = "0.1.0"
