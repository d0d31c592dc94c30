"""Shots as operators, and what is made of many: stacks that ranks share.

Which models and data are put in, and what is looked for, is `inversion`'s.
"""
