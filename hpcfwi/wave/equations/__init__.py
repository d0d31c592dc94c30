"""Descriptions of first-order wave equations, one in each module."""
