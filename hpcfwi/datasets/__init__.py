"""The known models, whose names are in `registry.DATASETS`.

`library` finds or downloads the published models, and loads all models. `dome` computes two.
"""
