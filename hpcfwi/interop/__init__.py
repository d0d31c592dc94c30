"""Other people's libraries, where more than a method of ours is needed: each imported when asked.

`operators` has stacks, fidelities and tiles; here they only get the interfaces of other libraries.
"""
