from mmengine.config import read_base

with read_base():
    from .bases.lazy_schedule import optim_wrapper as schedule

optim_wrapper = dict(optimizer=schedule.optimizer, clip_grad=schedule.clip_grad)
