from mmengine.config import read_base

with read_base():
    from .bases.lazy_schedule import *

optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
