from mmengine.config import read_base

with read_base():
    from .._base_.default_runtime import *

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=0.0001, weight_decay=0.0001),
)
