"""Descriptions of first-order wave equations."""
