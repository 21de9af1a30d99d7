"""Find steps without a clip (`unclipped.py`), and optimizers without a clip (`chains.py`), in files with other clips.

`scaled.py` finds clips of gradients that a loss scaler has scaled. `training.py` finds files that train.
"""
