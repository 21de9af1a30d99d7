from mmengine.config import read_base

with read_base():
    from .bases.lazy_schedule import *

model = dict(type='DETR')
optim_wrapper.optimizer.lr = 0.01
