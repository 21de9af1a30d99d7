from mmengine.config import read_base

with read_base():
    from .bases.lazy_schedule import *
    from .bases.lazy_runtime import default_scope

optim_wrapper.update(clip_grad=dict(max_norm=0.1, norm_type=2))
