"""Known models, named in `registry.DATASETS`: found, fetched or computed.

One family of models a file: `marmousi` is published, `dome` computed. A dataset is a value
(`dataset`); `library` makes models of them, from files that `fetch` finds or downloads.
"""
