from mmengine.config import read_base

with read_base():
    from mmdet.configs._base_.schedules.schedule_1x import *

default_scope = 'mmdet'
