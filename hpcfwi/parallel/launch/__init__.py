"""From a started process to a rank with a device.

`start` is the way, with a `Context` at its end; `launchers` tells which program started the process
and whether MPI agrees with it; `rendezvous` is where the ranks find each other, and `doors` shuts
behind them what libraries listen on; `node` is what a rank takes of its host: cores, GPU, network,
and `descriptors` whether it may open as many files as it needs.
"""
