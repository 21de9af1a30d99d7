"""Find optimizers, and steps of optimizers, without a clip in a file that clips for another one: `unclipped.py`. Find
clips of gradients that a loss scaler has scaled: `scaled.py`.
"""
