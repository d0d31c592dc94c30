"""Other people's libraries, where more than a method of ours is needed: each imported when asked.

What stacks, fidelities and tiles do is `operators`'s; here they only get other people's words.
"""
