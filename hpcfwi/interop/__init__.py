"""Interfaces to other libraries that need more than a method of an operator.

The modules wrap stacks, fidelities and tiles of `hpcfwi.operators` in the types of another library.
Each module imports its library, so that none is needed unless its module is used.
"""
